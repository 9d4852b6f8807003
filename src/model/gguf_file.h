// A GGUF file, read only and completely validated before anything else looks at it.
//
// ggml and llama.cpp abort on files that break their assumptions, so nothing of a file reaches them
// unchecked. open() verifies every count, length, type, name, offset and size against the bytes
// that are there; afterwards each view handed out lies inside the file. Views live as long as the
// object. Thread safety: immutable after open().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "qevict/result.h"

namespace qevict {

enum class GgufType : std::uint32_t {
  Uint8,
  Int8,
  Uint16,
  Int16,
  Uint32,
  Int32,
  Float32,
  Bool,
  String,
  Array,
  Uint64,
  Int64,
  Float64,
};
const char* to_string(GgufType type);

// One metadata value. A scalar has count 1 and element == type.
struct GgufValue {
  GgufType type = GgufType::Uint8;
  GgufType element = GgufType::Uint8;
  std::uint64_t count = 0;
  std::span<const std::byte> bytes;  // as in the file, little-endian
};

struct GgufTensor {
  std::string name;
  int type = 0;    // ggml_type, known to ggml
  int n_dims = 0;  // 1..4
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};
  std::uint64_t offset = 0;  // from the start of the file
  std::uint64_t n_bytes = 0;
  std::int64_t n_elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

class GgufFile {
 public:
  // use_mmap = false reads the file into memory. Errors: BadInput, naming the place and the limit.
  static Result<GgufFile> open(const std::string& path, bool use_mmap);
  // The same checks on bytes in memory, which must outlive the object.
  static Result<GgufFile> parse(std::span<const std::byte> data, const std::string& path);

  GgufFile(GgufFile&& other) noexcept;
  GgufFile& operator=(GgufFile&& other) noexcept;
  ~GgufFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> data() const { return data_; }
  bool is_mapped() const { return mapped_; }
  int version() const { return version_; }

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;
  const std::vector<std::string>& keys() const { return keys_; }
  const GgufValue* find(std::string_view key) const;

  // Typed reads; an absent key is an error unless the caller asks for has() first.
  bool has(std::string_view key) const { return find(key) != nullptr; }
  Result<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max) const;
  Result<double> real(std::string_view key, double min, double max) const;
  Result<std::string_view> text(std::string_view key) const;
  Result<bool> boolean(std::string_view key) const;
  Result<std::vector<std::string_view>> texts(std::string_view key) const;
  // An integer, or an array of `n` equal integers (per layer).
  Result<std::int64_t> uniform_integer(std::string_view key, std::int64_t n, std::int64_t min,
                                       std::int64_t max) const;

  // "WHAT (path): convert the model again" and the like.
  std::unexpected<Error> error(const std::string& what, const std::string& advice = "") const;

 private:
  friend class GgufParser;
  GgufFile() = default;
  void release() noexcept;
  Result<const GgufValue*> require(std::string_view key) const;
  std::unexpected<Error> wrong_type(std::string_view key, const GgufValue& value,
                                    const char* expected) const;

  std::string path_;
  std::span<const std::byte> data_;
  bool mapped_ = false;
  bool owned_ = false;
  int version_ = 0;
  std::vector<std::string> keys_;
  std::unordered_map<std::string, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, std::size_t> tensor_index_;
};

// Text from a file, made safe for a one-line message: quoted, ASCII, at most 64 characters.
std::string quoted(std::string_view text);

// Reads a list of keys and remembers the first error, so that the list reads as a list.
class KeyReader {
 public:
  explicit KeyReader(const GgufFile& file, std::string prefix = "")
      : file_(file), prefix_(std::move(prefix)) {}
  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  bool has(std::string_view name) const { return file_.has(key(name)); }
  int integer(std::string_view name, std::int64_t min, std::int64_t max);
  int integer_or(std::string_view name, std::int64_t min, std::int64_t max, int fallback);
  int uniform_integer(std::string_view name, std::int64_t n, std::int64_t min, std::int64_t max);
  double real(std::string_view name, double min, double max);
  double real_or(std::string_view name, double min, double max, double fallback);
  bool boolean_or(std::string_view name, bool fallback);
  std::string text_or(std::string_view name, std::string fallback);
  // Records an error of the caller's own unless one is there already.
  void fail(const std::string& what, const std::string& advice = "");
  Status status() const { return status_; }
  bool ok() const { return status_.has_value(); }

 private:
  template <typename T>
  T take(Result<T> result, T fallback);
  const GgufFile& file_;
  std::string prefix_;
  Status status_;
};

}  // namespace qevict
