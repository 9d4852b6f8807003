// IEEE half precision as raw bits, and its conversions (round to nearest even, as the hardware's).
//
// Branch-free bit arithmetic, because a baseline build has no F16C and the compiler's library calls
// are too slow for prompts; loops over these vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace qevict {

using fp16_t = std::uint16_t;

inline float fp16_to_fp32(fp16_t h) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(h & 0x7fffU) << 13;
  // Multiplying by 2^112 moves the exponent bias from 15 to 127 and makes subnormals exact.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1.0p112F;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t special = magnitude | 0x7f800000U;  // infinity, NaN
  return std::bit_cast<float>(sign | (magnitude >= 0x0f800000U ? special : bits));
}

// Overflow becomes infinity, NaN stays NaN (quiet).
inline fp16_t fp32_to_fp16(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Normal results: rebias the exponent and round to nearest even on the 13 dropped bits.
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xfffU + odd) >> 13;
  // Subnormal results: adding 0.5 lets the FPU round to a multiple of 2^-24.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  std::uint32_t half = magnitude < 0x38800000U ? subnormal : normal;
  half = magnitude >= 0x477ff000U ? 0x7c00U : half;  // rounds to or beyond 65520
  half = magnitude > 0x7f800000U ? 0x7e00U : half;
  return static_cast<fp16_t>(sign | half);
}

}  // namespace qevict
