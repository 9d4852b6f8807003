// IEEE half precision as raw bits, and its conversions (round to nearest even, as the hardware's).
#pragma once

#include <bit>
#include <cstdint>

namespace qevict {

using fp16_t = std::uint16_t;

inline float fp16_to_fp32(fp16_t h) noexcept {
  return static_cast<float>(std::bit_cast<_Float16>(h));
}
// Overflow becomes infinity, NaN stays NaN.
inline fp16_t fp32_to_fp16(float x) noexcept {
  return std::bit_cast<fp16_t>(static_cast<_Float16>(x));
}

}  // namespace qevict
