// Small integer arithmetic.
#pragma once

namespace qevict {

// a / b rounded up; a >= 0, b > 0.
template <typename T>
constexpr T ceil_div(T a, T b) noexcept {
  return (a + b - 1) / b;
}

}  // namespace qevict
