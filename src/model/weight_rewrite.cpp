#include "model/weight_rewrite.h"

#include <cstring>

namespace qevict {
namespace {

constexpr int kBlock = 32;
constexpr std::int64_t kQ5Bytes = 2 + 4 + kBlock / 2;
constexpr std::int64_t kQ8Bytes = 2 + kBlock;

}  // namespace

ggml_type lossless_type(ggml_type type) { return type == GGML_TYPE_Q5_0 ? GGML_TYPE_Q8_0 : type; }

void rewrite_q5_0_as_q8_0(const std::byte* from, std::int64_t n_blocks, std::byte* to) {
  for (std::int64_t b = 0; b < n_blocks; ++b, from += kQ5Bytes, to += kQ8Bytes) {
    std::memcpy(to, from, 2);  // the scale
    std::uint32_t fifth = 0;
    std::memcpy(&fifth, from + 2, sizeof(fifth));
    std::uint8_t nibbles[kBlock / 2];
    std::memcpy(nibbles, from + 6, sizeof(nibbles));
    std::int8_t codes[kBlock];
    // The low nibbles are the first half of the block, the high ones the second.
    for (int i = 0; i < kBlock / 2; ++i) {
      const std::uint32_t low = (nibbles[i] & 15U) | ((fifth >> i & 1U) << 4U);
      const std::uint32_t high = (nibbles[i] >> 4U) | ((fifth >> (i + kBlock / 2) & 1U) << 4U);
      codes[i] = static_cast<std::int8_t>(static_cast<int>(low) - 16);
      codes[i + kBlock / 2] = static_cast<std::int8_t>(static_cast<int>(high) - 16);
    }
    std::memcpy(to + 2, codes, sizeof(codes));
  }
}

}  // namespace qevict
