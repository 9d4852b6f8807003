// Reading golden vectors (format qevict-vectors/1) and comparing with them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace qevict::vectors {

// An array of the file. f32 and f16 numbers are rounded to float first, as the format asks; null is
// NaN.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<double> data;
  std::vector<float> floats() const;
  std::vector<std::int64_t> ints() const;
  std::int64_t dim(std::size_t i) const { return shape.at(i); }
};
Array read_array(const nlohmann::json& value);

// Largest difference allowed; either suffices.
struct Tolerance {
  double abs = 0.0, rel = 0.0;
};
// Of `key`, or of "all"; "exact" is zero. Throws json::exception when neither is there.
Tolerance read_tolerance(const nlohmann::json& tolerances, const std::string& key);

// Collects what differs in one case.
class Check {
 public:
  bool ok() const { return failures_ == 0; }
  // The first differences, on one line.
  std::string detail() const;
  // Prefix of the names that follow, e.g. which kernels ran.
  void set_context(std::string context) { context_ = std::move(context); }

  void fail(const std::string& what);
  void equal(const std::string& name, std::int64_t got, std::int64_t expected);
  void close(const std::string& name, double got, double expected, Tolerance tolerance);
  template <typename T>
  void equal_all(const std::string& name, const std::vector<T>& got,
                 const std::vector<std::int64_t>& expected) {
    if (got.size() != expected.size()) {
      return fail(name + ": " + std::to_string(got.size()) + " values for " +
                  std::to_string(expected.size()));
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto value = static_cast<std::int64_t>(got[i]);
      if (value == expected[i]) continue;
      return fail(name + "[" + std::to_string(i) + "] is " + std::to_string(value) + ", not " +
                  std::to_string(expected[i]));
    }
  }
  void close_all(const std::string& name, const std::vector<float>& got,
                 const std::vector<double>& expected, Tolerance tolerance);

 private:
  std::string context_;
  std::string first_;
  int failures_ = 0;
};

}  // namespace qevict::vectors
