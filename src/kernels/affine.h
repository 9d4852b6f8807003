// Pieces that the published quantisers share: affine grids with a stated rounding, packed codes.
//
// Pure functions on raw pointers; no allocation; noexcept; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/fp16.h"

namespace qevict {

// What the result of every single operation is rounded to: a published implementation computes in
// the model's precision, and its codes depend on it.
enum class Rounding : std::uint8_t { F32, F16 };

// Beyond fp16's range: its largest value, so that finite groups come back finite.
inline float round_to(Rounding rounding, float x) noexcept {
  constexpr float kMax = 65504.0F;
  if (rounding == Rounding::F32) return x;
  return fp16_to_fp32(fp32_to_fp16(std::clamp(x, -kMax, kMax)));
}

// x ~ code * scale + zero. A constant group has scale 0: its codes are 0 and mean `zero`.
struct AffineGrid {
  float scale = 0.0F;
  float zero = 0.0F;
};

// scale = (max - min) / (2^bits - 1), zero = min, of a group whose extremes are known.
AffineGrid affine_grid(float min, float max, int bits, Rounding rounding) noexcept;
// clamp(round_half_even((x - zero) / scale), 0, 2^bits - 1).
std::uint8_t affine_code(const AffineGrid& grid, float x, int bits, Rounding rounding) noexcept;
float affine_value(const AffineGrid& grid, std::uint8_t code, Rounding rounding) noexcept;
// What each code means: table [2^bits].
void affine_table(const AffineGrid& grid, int bits, Rounding rounding, fp16_t* table) noexcept;

// Codes of 1..8 bits as a little-endian stream: code j in bits j*bits .. j*bits + bits - 1. For 2,
// 4 and 8 bits that is what a published implementation packs into 32-bit words.
constexpr std::size_t packed_bytes(std::size_t n, int bits) noexcept { return (n * bits + 7) / 8; }
void pack_codes(const std::uint8_t* codes, int n, int bits, std::uint8_t* packed) noexcept;
// Codes first .. first + n - 1 of a stream.
void unpack_codes(const std::uint8_t* packed, std::ptrdiff_t first, int n, int bits,
                  std::uint8_t* codes) noexcept;

}  // namespace qevict
