// A policy's own parameters, declared once: name, default and limits give the reading, the errors
// and the text of `qevict policies`.
//
//   struct Options {
//     int kernel = 5;
//     void declare(Parameters& p) { p.integer("kernel", kernel, 1, 63); }
//   };
//   policy.parameters = options_text<Options>();
//   policy.check_parameters = check_options<Options>;
//   policy.make_selector = [](const CacheConfig& config) {
//     return std::make_unique<Mine>(read_options<Options>(config));
//   };
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "kv/policy.h"

namespace qevict {

// Goes through a declaration: each call takes the value given for its key, if there is one. Later
// declarations may depend on values that earlier ones took (a flavour's defaults).
class Parameters {
 public:
  explicit Parameters(std::span<const PolicyParameter> given) : given_(given) {}

  void integer(std::string_view key, int& value, int min, int max);
  // The same, odd numbers only (the width of a centred kernel).
  void odd(std::string_view key, int& value, int min, int max);
  void real(std::string_view key, double& value, double min, double max);
  void flag(std::string_view key, bool& value);
  // names[i] stands for the enumerator of value i.
  template <typename Enum>
  void choice(std::string_view key, Enum& value, std::initializer_list<std::string_view> names) {
    value = static_cast<Enum>(choose(key, static_cast<int>(value), names));
  }

  // "kernel=5 pooling=average|max": the defaults, the default choice first.
  const std::string& text() const { return text_; }
  // What is wrong: a value, or a key that was not declared.
  Status status() const;

 private:
  const std::string* take(std::string_view key, std::string default_text);
  void refuse(std::string_view key, const std::string& value, const std::string& advice);
  int choose(std::string_view key, int value, std::initializer_list<std::string_view> names);

  std::span<const PolicyParameter> given_;
  std::string text_;
  std::string keys_;  // "kernel, pooling"
  std::vector<std::string_view> declared_;
  Status status_;
};

template <typename Options>
Status check_options(const CacheConfig& config) {
  Parameters parameters(config.policy_parameters);
  Options options;
  options.declare(parameters);
  return parameters.status();
}

// The values of a configuration that passed check_options().
template <typename Options>
Options read_options(const CacheConfig& config) {
  Parameters parameters(config.policy_parameters);
  Options options;
  options.declare(parameters);
  QE_CHECK(parameters.status());
  return options;
}

template <typename Options>
std::string options_text() {
  Parameters parameters({});
  Options options;
  options.declare(parameters);
  return parameters.text();
}

}  // namespace qevict
