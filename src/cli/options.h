// The options that commands share: one table, from which --help, the environment variables and the
// parameters of --policy NAME:key=value follow.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "qevict/config.h"
#include "qevict/result.h"

namespace qevict::cli {

// One cache option. Flags take no value on the command line and "true" or "false" as a policy's
// key.
struct CacheOption {
  std::string_view key;    // field of CacheConfig
  std::string_view flag;   // "--sinks"
  std::string_view value;  // what --help shows; empty: a flag
  std::string_view help;
  Status (*set)(CacheConfig& config, const std::string& text);
  // A parameter of this name means the option also where a policy reads parameters itself.
  bool every_policy = false;
};
std::span<const CacheOption> cache_options();

struct CommonOptions {
  std::string model;  // path or name; empty: the default model
  EngineOptions engine;
  CacheConfig cache;
  GenerateOptions generate;
  bool no_repack = false;
  std::string rewrite_text = "auto";
  bool quiet = false;
  bool json = false;

  // As typed; finish_options() turns them into `cache`.
  std::string policy_text;  // empty: finish_options() puts default_policy() here
  std::vector<std::pair<const CacheOption*, std::string>> typed;
};

// The options keep a reference to `options`.
void add_model_options(CLI::App& app, CommonOptions& options);
// skipped: flags that the command defines itself.
void add_cache_options(CLI::App& app, CommonOptions& options, std::string_view skipped = "");
void add_policy_option(CLI::App& app, CommonOptions& options);
void add_sampling_options(CLI::App& app, CommonOptions& options);
void add_quiet_option(CLI::App& app, CommonOptions& options);
void add_json_option(CLI::App& app, CommonOptions& options);

// The policy where none is named: qevict+, or qevict if an option was typed that only it has.
std::string default_policy(const CommonOptions& options);
// Parses what was typed: the cache options, then the policy with its parameters (which win).
Status finish_options(CommonOptions& options);
// "NAME" or "NAME:key=value,..." into config.
Status apply_policy(const std::string& text, CacheConfig& config);

// "qevict:window=16,bits=4" in a list was split at its comma, too: parameters go back to their
// policy.
std::vector<std::string> join_parameters(std::vector<std::string> policies);

// Why an option that exists cannot be used yet.
std::unexpected<Error> not_available(std::string_view what);

// Checks without CLI11's notes in the help: a number from low to high, "32k" as 32768.
template <typename T>
CLI::Validator in_range(T low, T high) {
  // Not CLI::Range, which lets NaN through.
  return CLI::Validator(
      [low, high](std::string& text) {
        T value{};
        if (!CLI::detail::lexical_cast(text, value) || !(value >= low && value <= high)) {
          return fmt::format("{} not in range {} to {}", text, low, high);
        }
        return std::string();
      },
      "");
}
CLI::Validator with_suffix();

// Help texts without the clutter of CLI11's own: for the program and its commands.
void set_help_style(CLI::App& app);

}  // namespace qevict::cli
