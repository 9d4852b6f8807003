#include "kernels/affine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace qevict {

AffineGrid affine_grid(float min, float max, int bits, Rounding rounding) noexcept {
  const auto levels = static_cast<float>((1 << bits) - 1);
  const float range = round_to(rounding, max - min);
  return {round_to(rounding, range / levels), min};
}

std::uint8_t affine_code(const AffineGrid& grid, float x, int bits, Rounding rounding) noexcept {
  if (grid.scale == 0.0F) return 0;
  const float shifted = round_to(rounding, x - grid.zero);
  const float quotient = round_to(rounding, shifted / grid.scale);
  const auto levels = static_cast<float>((1 << bits) - 1);
  // Clamped first: the nearest integer of what lies outside may not fit into the code's type.
  return static_cast<std::uint8_t>(std::nearbyint(std::clamp(quotient, 0.0F, levels)));
}

float affine_value(const AffineGrid& grid, std::uint8_t code, Rounding rounding) noexcept {
  return round_to(rounding, round_to(rounding, static_cast<float>(code) * grid.scale) + grid.zero);
}

void affine_table(const AffineGrid& grid, int bits, Rounding rounding, fp16_t* table) noexcept {
  for (int code = 0; code < 1 << bits; ++code) {
    table[code] = fp32_to_fp16(affine_value(grid, static_cast<std::uint8_t>(code), rounding));
  }
}

void pack_codes(const std::uint8_t* codes, int n, int bits, std::uint8_t* packed) noexcept {
  std::memset(packed, 0, packed_bytes(static_cast<std::size_t>(n), bits));
  for (int j = 0; j < n; ++j) {
    const int at = j * bits;
    const unsigned shifted = static_cast<unsigned>(codes[j]) << (at % 8);
    packed[at / 8] = static_cast<std::uint8_t>(packed[at / 8] | shifted);
    if (at % 8 + bits > 8) packed[at / 8 + 1] = static_cast<std::uint8_t>(shifted >> 8);
  }
}

void unpack_codes(const std::uint8_t* packed, std::ptrdiff_t first, int n, int bits,
                  std::uint8_t* codes) noexcept {
  const auto mask = static_cast<unsigned>((1 << bits) - 1);
  const std::ptrdiff_t begin = first * bits;
  if (8 % bits == 0 && begin % 8 == 0) {
    // Whole bytes, the usual case: a loop over constants for each width.
    const std::uint8_t* from = packed + begin / 8;
    const int a_byte = 8 / bits;
    for (int j = 0; j < n; ++j) {
      codes[j] = static_cast<std::uint8_t>((from[j / a_byte] >> (j % a_byte * bits)) & mask);
    }
    return;
  }
  for (int j = 0; j < n; ++j) {
    const std::ptrdiff_t at = begin + std::ptrdiff_t{j} * bits;
    unsigned word = packed[at / 8];
    if (at % 8 + bits > 8) word |= static_cast<unsigned>(packed[at / 8 + 1]) << 8;
    codes[j] = static_cast<std::uint8_t>((word >> (at % 8)) & mask);
  }
}

}  // namespace qevict
