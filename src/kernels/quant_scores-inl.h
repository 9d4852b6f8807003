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

#include "kernels/attend_common-inl.h"
#include "kernels/quant_data-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

inline constexpr int kFactors = 6;
inline constexpr int kPairBlock = 16;

// The channels of pair c.
HWY_INLINE int first_channel(const Geometry& g, int c) {
  return g.pairing == RopePairing::Neox ? c : 2 * c;
}
HWY_INLINE int second_channel(const Geometry& g, int c) {
  return g.pairing == RopePairing::Neox ? c + g.head_dim / 2 : 2 * c + 1;
}

// Factors of pairs first_pair .. first_pair + count - 1: [count][kFactors][kLanes].
HWY_INLINE void key_factors(const KeyGrids& grids, const Geometry& g, const float* phases,
                            int first_pair, int count, float* HWY_RESTRICT factors) {
  const LaneTag d;
  for (int c = first_pair; c < first_pair + count; ++c) {
    const float* phase = phases + std::ptrdiff_t{c} * 2 * kLanes;
    float* out = factors + std::ptrdiff_t{c - first_pair} * kFactors * kLanes;
    for (int part = 0; part < kLanes; part += kLaneVec, out += kLaneVec) {
      const auto cos = hn::LoadU(d, phase + part);
      const auto sin = hn::LoadU(d, phase + kLanes + part);
      Vec<LaneTag> scale1, scale2, zero1, zero2;
      grids.load(first_channel(g, c), part, scale1, zero1);
      grids.load(second_channel(g, c), part, scale2, zero2);
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

// Where the codes of tokens j and j + 1 are: in one byte (2 and 4 bits), in a byte each (8 bits),
// in one byte of each of two planes (3 bits).
enum class CodeShape : std::uint8_t { Shared, Apart, Planes };

HWY_INLINE CodeShape code_shape(int bits) {
  return bits == 3 ? CodeShape::Planes : bits == 8 ? CodeShape::Apart : CodeShape::Shared;
}

// A field of some bits of each lane, as a float: its bits become the unit of the mantissa of a
// power of two, which is then subtracted. The multipliers and the shifter are left alone.
struct CodeField {
  // bits shift .. shift + width - 1, times 2^up.
  CodeField(int width, int shift, int up = 0)
      : mask(hn::Set(hn::RebindToSigned<LaneTag>(), ((1 << width) - 1) << shift)),
        base(hn::Set(LaneTag(), static_cast<float>(1 << (23 - shift + up)))) {}
  HWY_INLINE Vec<LaneTag> decode(Vec<hn::RebindToSigned<LaneTag>> x) const {
    const LaneTag d;
    const hn::RebindToSigned<LaneTag> di;
    return hn::Sub(hn::BitCast(d, hn::OrAnd(hn::BitCast(di, base), x, mask)), base);
  }
  Vec<hn::RebindToSigned<LaneTag>> mask;
  Vec<LaneTag> base;
};

// The codes of tokens j and j + 1 in a channel's row of bytes.
struct TokenCodes {
  TokenCodes(const Geometry& g, int lanes, int j) {
    const int bits = g.quant_bits;
    const int width = bits == 3 ? 2 : bits;
    const int per_byte = 8 / width;
    first = std::ptrdiff_t{j / per_byte} * lanes;
    shift = j % per_byte * width;
    other = bits == 3 ? std::ptrdiff_t{g.window / 4 + j / 8} * lanes : first + lanes;
    other_shift = bits == 3 ? j % 8 : 0;
    this->width = width;
  }
  std::ptrdiff_t first;  // bytes from the channel's row; token j's
  std::ptrdiff_t other;  // Apart: token j + 1's; Planes: the high bits
  int shift, other_shift;
  int width;
};

// The rows of the two channels of pair c, in strides of bytes.
struct CodeRows {
  const std::uint8_t* first;
  std::ptrdiff_t second;  // from the first channel's row to the second's
  std::ptrdiff_t step;    // from pair to pair
};

// What will be wanted later is fetched little by little.
struct Ahead {
  const char* at;
  int step;  // bytes for two tokens of a pair
};

// The codes of one channel, tokens j and j + 1, as they are read from its row.
template <CodeShape kShape>
struct CodeReader {
  explicit CodeReader(const TokenCodes& t)
      : t(t),
        field{CodeField(t.width, t.shift),
              CodeField(t.width, kShape == CodeShape::Apart ? t.shift : t.shift + t.width)},
        high{CodeField(1, t.other_shift, 2), CodeField(1, t.other_shift + 1, 2)} {}
  HWY_INLINE void read(const std::uint8_t* row, Vec<LaneTag> (&code)[2]) const {
    const LaneTag d;
    const auto bytes = load_u8(d, row + t.first);
    if constexpr (kShape == CodeShape::Apart) {
      code[0] = hn::ConvertTo(d, bytes);
      code[1] = hn::ConvertTo(d, load_u8(d, row + t.other));
      return;
    }
    code[0] = field[0].decode(bytes);
    code[1] = field[1].decode(bytes);
    if constexpr (kShape == CodeShape::Planes) {
      const auto upper = load_u8(d, row + t.other);
      code[0] = hn::Add(code[0], high[0].decode(upper));
      code[1] = hn::Add(code[1], high[1].decode(upper));
    }
  }
  const TokenCodes t;
  const CodeField field[2];
  const CodeField high[2];
};

// Adds `pairs` pairs to the scores of tokens j and j + 1. q: packed, of token j.
template <int H, CodeShape kShape>
HWY_INLINE void score_two(const CodeRows& rows, const TokenCodes& tokens, int pairs,
                          const float* HWY_RESTRICT factors, const float* HWY_RESTRICT q,
                          std::ptrdiff_t q_token, Ahead ahead, float* HWY_RESTRICT s) {
  const LaneTag d;
  using V = Vec<LaneTag>;
  const CodeReader<kShape> codes(tokens);
  for (int part = 0; part < kLanes; part += kLaneVec) {
    V sum[2][H];
    for (int h = 0; h < H; ++h) {
      for (int t = 0; t < 2; ++t) sum[t][h] = hn::Load(d, s + (t * H + h) * kLanes + part);
    }
    const std::uint8_t* row = rows.first + part;
    const float* f = factors + part;
    const float* qc = q;
    const char* next = ahead.at;
    for (int c = 0; c < pairs; ++c, row += rows.step, f += kFactors * kLanes, qc += 2 * H) {
      V code1[2];
      V code2[2];
      codes.read(row, code1);
      codes.read(row + rows.second, code2);
      for (int at = 0; at < ahead.step; at += 64) prefetch(next, at);
      next += ahead.step;
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
template <int H, CodeShape kShape>
HWY_INLINE void score_quantized(const Geometry& g, const QuantView& view, const float* factors,
                                int first_pair, int count, const float* q, Ahead next, float* s) {
  const int pairs = g.head_dim / 2;
  const bool neox = g.pairing == RopePairing::Neox;
  const std::ptrdiff_t channel = std::ptrdiff_t{g.window * g.quant_bits / 8} * view.lanes;
  const std::ptrdiff_t q_token = std::ptrdiff_t{g.head_dim} * H;
  CodeRows rows{};
  rows.step = neox ? channel : 2 * channel;
  rows.second = neox ? pairs * channel : channel;
  rows.first = view.k_codes + first_pair * rows.step;
  q += std::ptrdiff_t{first_pair} * 2 * H;
  next.at += std::ptrdiff_t{first_pair} * (g.window / 2) * next.step;
  for (int j = 0; j < g.window; j += 2, next.at += std::ptrdiff_t{count} * next.step) {
    score_two<H, kShape>(rows, TokenCodes(g, view.lanes, j), count, factors, q + j * q_token,
                         q_token, next, s + std::ptrdiff_t{j} * H * kLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_QUANT_SCORES_INL_H_
