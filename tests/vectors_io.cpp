#include "vectors_io.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace qevict::vectors {

using nlohmann::json;

std::vector<float> Array::floats() const {
  std::vector<float> out(data.size());
  std::ranges::transform(data, out.begin(), [](double x) { return static_cast<float>(x); });
  return out;
}

std::vector<std::int64_t> Array::ints() const {
  std::vector<std::int64_t> out(data.size());
  std::ranges::transform(data, out.begin(), [](double x) { return static_cast<std::int64_t>(x); });
  return out;
}

Array read_array(const json& value) {
  Array array;
  array.shape = value.at("shape").get<std::vector<std::int64_t>>();
  const auto dtype = value.at("dtype").get<std::string>();
  const bool single = dtype == "f32" || dtype == "f16";
  std::int64_t count = 1;
  for (const std::int64_t n : array.shape) count *= n;
  for (const json& x : value.at("data")) {
    double number = std::numeric_limits<double>::quiet_NaN();
    if (x.is_boolean()) {
      number = x.get<bool>() ? 1.0 : 0.0;
    } else if (!x.is_null()) {
      number = x.get<double>();
    }
    array.data.push_back(single ? static_cast<double>(static_cast<float>(number)) : number);
  }
  if (static_cast<std::int64_t>(array.data.size()) != count) {
    throw std::runtime_error("an array's data does not fill its shape");
  }
  return array;
}

Tolerance read_tolerance(const json& tolerances, const std::string& key) {
  const json& entry = tolerances.contains(key) ? tolerances.at(key) : tolerances.at("all");
  if (entry.is_string()) return {};
  return {entry.value("abs", 0.0), entry.value("rel", 0.0)};
}

std::string Check::detail() const {
  if (failures_ < 2) return first_;
  return first_ + " (and " + std::to_string(failures_ - 1) + " more)";
}

void Check::fail(const std::string& what) {
  if (failures_++ == 0) first_ = context_.empty() ? what : context_ + ": " + what;
}

void Check::equal(const std::string& name, std::int64_t got, std::int64_t expected) {
  if (got != expected) {
    fail(name + " is " + std::to_string(got) + ", not " + std::to_string(expected));
  }
}

void Check::close(const std::string& name, double got, double expected, Tolerance tolerance) {
  const double error = std::fabs(got - expected);
  // NaN fails unless it is expected.
  if (error <= tolerance.abs || error <= tolerance.rel * std::fabs(expected) ||
      (std::isnan(got) && std::isnan(expected))) {
    return;
  }
  char text[160];
  std::snprintf(text, sizeof text, " is %.9g, not %.9g (off by %.3g, allowed %g abs, %g rel)", got,
                expected, error, tolerance.abs, tolerance.rel);
  fail(name + text);
}

void Check::close_all(const std::string& name, const std::vector<float>& got,
                      const std::vector<double>& expected, Tolerance tolerance) {
  if (got.size() != expected.size()) {
    return fail(name + ": " + std::to_string(got.size()) + " values for " +
                std::to_string(expected.size()));
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    close(name + "[" + std::to_string(i) + "]", got[i], expected[i], tolerance);
  }
}

}  // namespace qevict::vectors
