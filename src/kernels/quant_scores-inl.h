// Scores of quantised keys: dequantise, rotate by the window's base and multiply with q in
// registers.
//
// With k = code * scale + zero for both channels of a RoPE pair and the base angle (cos, sin):
//   rotated first  = code1 * (scale1 cos) - code2 * (scale2 sin) + (zero1 cos - zero2 sin)
//   rotated second = code1 * (scale1 sin) + code2 * (scale2 cos) + (zero1 sin + zero2 cos)
// The six factors in brackets hold for all tokens of the window. They are made for kPairBlock pairs
// at a time, used for all tokens and heads, and so stay in the first cache level.
#if defined(QEVICT_KERNELS_QUANT_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_QUANT_SCORES_INL_H_
#undef QEVICT_KERNELS_QUANT_SCORES_INL_H_
#else
#define QEVICT_KERNELS_QUANT_SCORES_INL_H_
#endif

#include <cstring>

#include "kernels/attend_common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// One KV head's part of a group (layout.h).
struct QuantHead {
  QuantHead(const Geometry& g, const GroupRef& group, int kv_head) : lanes(group.lanes) {
    const std::size_t n = static_cast<std::size_t>(group.lanes);
    const std::size_t codes = g.code_bytes_per_head() * n;
    const std::size_t key_grid = static_cast<std::size_t>(g.head_dim) * n;
    const std::size_t value_grid = static_cast<std::size_t>(g.window) * n;
    bytes = 2 * codes + 4 * key_grid + 4 * value_grid;
    k_codes = group.data + bytes * kv_head;
    k_scale = reinterpret_cast<const fp16_t*>(k_codes + codes);
    k_zero = k_scale + key_grid;
    v_codes = reinterpret_cast<const std::uint8_t*>(k_zero + key_grid);
    v_scale = reinterpret_cast<const fp16_t*>(v_codes + codes);
    v_zero = v_scale + value_grid;
  }
  int lanes;
  std::size_t bytes;
  const std::uint8_t* k_codes;
  const fp16_t* k_scale;
  const fp16_t* k_zero;
  const std::uint8_t* v_codes;
  const fp16_t* v_scale;
  const fp16_t* v_zero;
};

inline constexpr int kFactors = 6;
inline constexpr int kPairBlock = 16;

// Key zeros whose rows of 16 lanes can be read whole (see attend_full-inl.h): the allocation may
// end less than a row after them.
struct KeyZeros {
  KeyZeros(const QuantHead& head, const Geometry& g) : rows(head.k_zero) {
    const auto after = static_cast<std::size_t>(head.k_codes + head.bytes - head.v_codes);
    if (after >= kLanes * sizeof(fp16_t)) return;
    std::memcpy(padded, rows, sizeof(fp16_t) * g.head_dim * head.lanes);
    rows = padded;
  }
  KeyZeros(const KeyZeros&) = delete;
  const fp16_t* rows;
  HWY_ALIGN fp16_t padded[128];
};

// Factors of pairs first_pair .. first_pair + count - 1: [count][kFactors][kLanes].
HWY_INLINE void key_factors(const QuantHead& head, const Geometry& g, const fp16_t* zeros,
                            const float* phases, int first_pair, int count,
                            float* HWY_RESTRICT factors) {
  const LaneTag d;
  const int pairs = g.head_dim / 2;
  const bool neox = g.pairing == RopePairing::Neox;
  for (int c = first_pair; c < first_pair + count; ++c) {
    const std::ptrdiff_t first = std::ptrdiff_t{neox ? c : 2 * c} * head.lanes;
    const std::ptrdiff_t second = first + std::ptrdiff_t{neox ? pairs : 1} * head.lanes;
    const float* phase = phases + std::ptrdiff_t{c} * 2 * kLanes;
    float* out = factors + std::ptrdiff_t{c - first_pair} * kFactors * kLanes;
    for (int part = 0; part < kLanes; part += kLaneVec, out += kLaneVec) {
      const auto cos = hn::LoadU(d, phase + part);
      const auto sin = hn::LoadU(d, phase + kLanes + part);
      const auto scale1 = load_f16(d, head.k_scale + first + part);
      const auto scale2 = load_f16(d, head.k_scale + second + part);
      const auto zero1 = load_f16(d, zeros + first + part);
      const auto zero2 = load_f16(d, zeros + second + part);
      hn::Store(hn::Mul(scale1, cos), d, out);
      hn::Store(hn::Neg(hn::Mul(scale2, sin)), d, out + kLanes);
      hn::Store(hn::NegMulAdd(zero2, sin, hn::Mul(zero1, cos)), d, out + 2 * kLanes);
      hn::Store(hn::Mul(scale1, sin), d, out + 3 * kLanes);
      hn::Store(hn::Mul(scale2, cos), d, out + 4 * kLanes);
      hn::Store(hn::MulAdd(zero2, cos, hn::Mul(zero1, sin)), d, out + 5 * kLanes);
    }
  }
}

// Query heads of one sweep over the groups; a sweep works on blocks of kHeadBlock of them.
inline constexpr int kQuantSweepHeads = 8;

// q_back: for each block of each sweep, in order, [window][pairs][2][heads of the block].
struct PackBackWork {
  const Geometry& g;
  const float* q;  // [heads of the block][dim]
  const float *cos, *sin;
  float* out;

  template <int H>
  void run() const {
    const int pairs = g.head_dim / 2;
    const bool neox = g.pairing == RopePairing::Neox;
    const int step = neox ? 1 : 2;
    const int second = neox ? pairs : 1;
    HWY_ALIGN float packed[kMaxHeadDim * H];
    for (int h = 0; h < H; ++h) {
      const float* x = q + std::ptrdiff_t{h} * g.head_dim;
      for (int c = 0; c < pairs; ++c) {
        packed[2 * c * H + h] = x[c * step];
        packed[(2 * c + 1) * H + h] = x[c * step + second];
      }
    }
    float* HWY_RESTRICT y = out;
    for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{g.window} * pairs; i += pairs) {
      const float* HWY_RESTRICT x = packed;
      for (int c = 0; c < pairs; ++c, x += 2 * H, y += 2 * H) {
        const float cs = cos[i + c];
        const float sn = sin[i + c];
        for (int h = 0; h < H; ++h) {
          y[h] = x[h] * cs + x[H + h] * sn;
          y[H + h] = x[H + h] * cs - x[h] * sn;
        }
      }
    }
  }
};

void rotate_queries_back(const Geometry& g, const float* q, const float* cos, const float* sin,
                         float* q_back) noexcept {
  const HeadBlocks sweeps(g.group_size(), kQuantSweepHeads);
  for (int i = 0; i < sweeps.n_blocks; ++i) {
    const HeadBlocks blocks(sweeps.count(i));
    for (int b = 0; b < blocks.n_blocks; ++b) {
      const std::ptrdiff_t at = std::ptrdiff_t{sweeps.first(i) + blocks.first(b)} * g.head_dim;
      const PackBackWork work = {g, q + at, cos, sin, q_back + at * g.window};
      run_heads<kHeadBlock>(blocks.count(b), work);
    }
  }
}

// Code bytes of the two channels of pair c, in strides of bytes.
struct CodeRows {
  const std::uint8_t* first;
  std::ptrdiff_t second;  // from the first channel's row to the second's
  std::ptrdiff_t step;    // from pair to pair
};

// Adds `pairs` pairs to the scores of tokens j and j + 1, whose codes are neighbours in a byte: in
// its upper half when kUpper. q: packed, of token j. next: what will be wanted later; as many bytes
// are fetched as codes are read.
template <int H, int kBits, bool kUpper>
HWY_INLINE void score_two(const CodeRows& rows, int pairs, const float* HWY_RESTRICT factors,
                          const float* HWY_RESTRICT q, std::ptrdiff_t q_token, const char* next,
                          float* HWY_RESTRICT s) {
  const LaneTag d;
  using V = Vec<LaneTag>;
  for (int part = 0; part < kLanes; part += kLaneVec) {
    V sum[2][H];
    for (int h = 0; h < H; ++h) {
      for (int t = 0; t < 2; ++t) sum[t][h] = hn::Load(d, s + (t * H + h) * kLanes + part);
    }
    const std::uint8_t* row = rows.first + part;
    const float* f = factors + part;
    const float* qc = q;
    for (int c = 0; c < pairs; ++c, row += rows.step, f += kFactors * kLanes, qc += 2 * H) {
      const auto bytes1 = load_u8(d, row);
      const auto bytes2 = load_u8(d, row + rows.second);
      for (int i = 0; i < kBits / 2; ++i) prefetch(next, (std::ptrdiff_t{c} * kBits / 2 + i) * 64);
      constexpr int kShift = kUpper ? 4 : 0;
      const V code1[2] = {decode<kBits, kShift>(d, bytes1),
                          decode<kBits, kShift + kBits>(d, bytes1)};
      const V code2[2] = {decode<kBits, kShift>(d, bytes2),
                          decode<kBits, kShift + kBits>(d, bytes2)};
      V key1[2];
      V key2[2];
      for (int t = 0; t < 2; ++t) {
        key1[t] = hn::MulAdd(code1[t], hn::Load(d, f), hn::Load(d, f + 2 * kLanes));
        key1[t] = hn::MulAdd(code2[t], hn::Load(d, f + kLanes), key1[t]);
        key2[t] = hn::MulAdd(code1[t], hn::Load(d, f + 3 * kLanes), hn::Load(d, f + 5 * kLanes));
        key2[t] = hn::MulAdd(code2[t], hn::Load(d, f + 4 * kLanes), key2[t]);
      }
      for (int h = 0; h < H; ++h) {
        for (int t = 0; t < 2; ++t) {
          const float* qt = qc + t * q_token + h;
          sum[t][h] = hn::MulAdd(key1[t], hn::Set(d, qt[0]), sum[t][h]);
          sum[t][h] = hn::MulAdd(key2[t], hn::Set(d, qt[H]), sum[t][h]);
        }
      }
    }
    for (int h = 0; h < H; ++h) {
      for (int t = 0; t < 2; ++t) hn::Store(sum[t][h], d, s + (t * H + h) * kLanes + part);
    }
  }
}

// Adds pairs first_pair .. first_pair + count - 1 to the scores s [window][H][kLanes].
template <int H, int kBits>
HWY_INLINE void score_quantized(const Geometry& g, const QuantHead& head, const float* factors,
                                int first_pair, int count, const float* q, const char* next,
                                float* s) {
  const int pairs = g.head_dim / 2;
  const bool neox = g.pairing == RopePairing::Neox;
  constexpr int kPerByte = 8 / kBits;
  const std::ptrdiff_t channel = std::ptrdiff_t{g.window / kPerByte} * head.lanes;
  const std::ptrdiff_t step = neox ? channel : 2 * channel;
  const std::ptrdiff_t q_token = std::ptrdiff_t{g.head_dim} * H;
  const std::uint8_t* codes = head.k_codes + first_pair * step;
  q += std::ptrdiff_t{first_pair} * 2 * H;
  next += std::ptrdiff_t{first_pair} * g.window * 16 * kBits;  // 64 bytes for two 2-bit tokens
  for (int j = 0; j < g.window; j += 2) {
    const CodeRows rows = {codes + std::ptrdiff_t{j / kPerByte} * head.lanes,
                           neox ? pairs * channel : channel, step};
    const float* qj = q + j * q_token;
    float* sj = s + std::ptrdiff_t{j} * H * kLanes;
    const char* ahead = next + std::ptrdiff_t{j} * count * 16 * kBits;
    if (kBits == 2 && j % 4 == 2) {
      score_two<H, kBits, true>(rows, count, factors, qj, q_token, ahead, sj);
    } else {
      score_two<H, kBits, false>(rows, count, factors, qj, q_token, ahead, sj);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_QUANT_SCORES_INL_H_
