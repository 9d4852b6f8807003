#include "policies/parameters.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace qevict {
namespace {

template <typename T>
std::optional<T> parse(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string shortest(double x) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, x);
  return {text, end};
}

std::string limits(const std::string& min, const std::string& max) {
  return " from " + min + " to " + max;
}

}  // namespace

const std::string* Parameters::take(std::string_view key, std::string default_text) {
  text_ += (text_.empty() ? "" : " ") + std::string(key) + "=" + default_text;
  keys_ += (keys_.empty() ? "" : ", ") + std::string(key);
  declared_.push_back(key);
  const auto given = std::ranges::find(given_, key, &PolicyParameter::key);
  return given == given_.end() ? nullptr : &given->value;
}

void Parameters::refuse(std::string_view key, const std::string& value, const std::string& advice) {
  if (!status_) return;
  status_ = bad_input(std::string(key) + " is '" + value + "' (--policy): use " + advice);
}

void Parameters::integer(std::string_view key, int& value, int min, int max) {
  const std::string* text = take(key, std::to_string(value));
  if (text == nullptr) return;
  const std::optional<int> number = parse<int>(*text);
  if (number && *number >= min && *number <= max) {
    value = *number;
  } else {
    refuse(key, *text, "a whole number" + limits(std::to_string(min), std::to_string(max)));
  }
}

void Parameters::odd(std::string_view key, int& value, int min, int max) {
  integer(key, value, min, max);
  if (value % 2 == 0) refuse(key, std::to_string(value), "an odd number");
}

void Parameters::real(std::string_view key, double& value, double min, double max) {
  const std::string* text = take(key, shortest(value));
  if (text == nullptr) return;
  const std::optional<double> number = parse<double>(*text);
  if (number && *number >= min && *number <= max) {
    value = *number;
  } else {
    refuse(key, *text, "a number" + limits(shortest(min), shortest(max)));
  }
}

void Parameters::flag(std::string_view key, bool& value) {
  const std::string* text = take(key, value ? "true" : "false");
  if (text == nullptr) return;
  if (*text != "true" && *text != "false") return refuse(key, *text, "true or false");
  value = *text == "true";
}

int Parameters::choose(std::string_view key, int value,
                       std::initializer_list<std::string_view> names) {
  std::string text(names.begin()[value]);
  for (std::string_view name : names) {
    if (name != names.begin()[value]) text += "|" + std::string(name);
  }
  const std::string* given = take(key, text);
  if (given == nullptr) return value;
  const auto* found = std::ranges::find(names, std::string_view(*given));
  if (found != names.end()) return static_cast<int>(found - names.begin());
  std::ranges::replace(text, '|', ' ');
  refuse(key, *given, "one of " + text);
  return value;
}

Status Parameters::status() const {
  if (!status_) return status_;
  for (const PolicyParameter& given : given_) {
    if (std::ranges::find(declared_, given.key) != declared_.end()) continue;
    return bad_input("no parameter '" + given.key + "' (--policy): use " + keys_);
  }
  return {};
}

}  // namespace qevict
