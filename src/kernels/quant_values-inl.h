// P.V of quantised values: the value grid is folded into the probabilities, the codes are added up.
#if defined(QEVICT_KERNELS_QUANT_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_QUANT_VALUES_INL_H_
#undef QEVICT_KERNELS_QUANT_VALUES_INL_H_
#else
#define QEVICT_KERNELS_QUANT_VALUES_INL_H_
#endif

#include <cstring>

#include "kernels/quant_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// The value grid of one group, widened: scale and zero [window][kLanes]. Lanes that do not exist
// are 0.
struct ValueGrid {
  ValueGrid(const QuantHead& head, int window) {
    load(head.v_scale, head.lanes, window, scale);
    load(head.v_zero, head.lanes, window, zero);
  }

  // The last rows may be the end of the allocation: fewer lanes are copied first.
  static HWY_INLINE void load(const fp16_t* rows, int lanes, int window, float* out) {
    const LaneTag d;
    HWY_ALIGN fp16_t padded[kLanes] = {};
    for (int j = 0; j < window; ++j, rows += lanes) {
      const fp16_t* row = rows;
      if (lanes < kLanes) {
        std::memcpy(padded, rows, sizeof(fp16_t) * lanes);
        row = padded;
      }
      for (int part = 0; part < kLanes; part += kLaneVec) {
        hn::Store(load_f16(d, row + part), d, out + j * kLanes + part);
      }
    }
  }

  HWY_ALIGN float scale[kMaxWindow * kLanes];
  HWY_ALIGN float zero[kMaxWindow * kLanes];
};

// Folds the grid into the probabilities: p -> p * scale, and offset[h] = sum of p * zero, which
// every channel of o gets.
struct FoldGrid {
  const ValueGrid& grid;
  float* HWY_RESTRICT offset;
  Vec<LaneTag> sum;

  HWY_INLINE void begin() { sum = hn::Zero(LaneTag()); }
  HWY_INLINE Vec<LaneTag> weight(int block, int part, Vec<LaneTag> p) {
    const LaneTag d;
    sum = hn::MulAdd(p, hn::Load(d, grid.zero + block * kLanes + part), sum);
    return hn::Mul(p, hn::Load(d, grid.scale + block * kLanes + part));
  }
  HWY_INLINE void end(int head) { offset[head] = hn::GetLane(hn::SumOfLanes(LaneTag(), sum)); }
};

// Where the codes of one vector of bytes stand: kPerByte vectors of channels come out of them.
struct CodeWalk {
  const std::uint8_t* codes;
  std::ptrdiff_t row_bytes;
  int lanes, window;
};

// Adds the tokens of a group to kPairs * 2 vectors of o; kUpper: those of the bytes' upper halves.
template <int H, int kBits, int kPairs, bool kUpper, class D>
HWY_INLINE void add_codes(D d, const CodeWalk& walk, const float* HWY_RESTRICT p,
                          const float* shrink, const float* offset, float* o,
                          std::ptrdiff_t o_stride) {
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(D()));
  constexpr int kVecs = 2 * kPairs;
  Vec<D> sum[H][kVecs];
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < kVecs; ++i) {
      sum[h][i] = hn::MulAdd(hn::LoadU(d, o + h * o_stride + i * kWidth), hn::Set(d, shrink[h]),
                             hn::Set(d, offset[h]));
    }
  }
  const std::uint8_t* row = walk.codes;
  for (int n = 0; n < walk.lanes; ++n) {
    Separate<kVecs> pt(p + n);
    for (int j = 0; j < walk.window; ++j, row += walk.row_bytes, pt.advance(H * kLanes)) {
      constexpr int kShift = kUpper ? 4 : 0;
      const auto bytes = load_u8(d, row);
      Vec<D> code[kVecs];
      code[0] = decode<kBits, kShift>(d, bytes);
      code[1] = decode<kBits, kShift + kBits>(d, bytes);
      if constexpr (kPairs == 2) {
        code[2] = decode<kBits, 4>(d, bytes);
        code[3] = decode<kBits, 4 + kBits>(d, bytes);
      }
      for (int h = 0; h < H; ++h) {
        for (int i = 0; i < kVecs; ++i) {
          sum[h][i] = hn::MulAdd(code[i], hn::Set(d, pt.at[i][h * kLanes]), sum[h][i]);
        }
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < kVecs; ++i) hn::StoreU(sum[h][i], d, o + h * o_stride + i * kWidth);
  }
}

// o is in code order (CodeOrder below).
template <int H, int kBits, class D>
HWY_INLINE void add_codes_with(D d, CodeWalk walk, const float* p, const float* shrink,
                               const float* offset, float* o, std::ptrdiff_t o_stride) {
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(D()));
  constexpr int kPerByte = 8 / kBits;
  const std::uint8_t* codes = walk.codes;
  for (std::ptrdiff_t b = 0; b < walk.row_bytes; b += kWidth) {
    walk.codes = codes + b;
    float* ob = o + b * kPerByte;
    if constexpr (kBits == 4) {
      add_codes<H, 4, 1, false>(d, walk, p, shrink, offset, ob, o_stride);
    } else if constexpr (H * 8 <= kRegisters / 2) {
      add_codes<H, 2, 2, false>(d, walk, p, shrink, offset, ob, o_stride);
    } else {
      add_codes<H, 2, 1, false>(d, walk, p, shrink, offset, ob, o_stride);
      add_codes<H, 2, 1, true>(d, walk, p, shrink, offset, ob + 2 * kWidth, o_stride);
    }
  }
}

// The order of o's channels while a sweep runs: a vector of bytes gives one vector of channels for
// each place in a byte, so channel (byte * per_byte + place) stands at
// (byte / width * per_byte + place) * width + byte % width.
struct CodeOrder {
  explicit CodeOrder(const Geometry& g) : per_byte(8 / g.quant_bits), dim(g.head_dim) {
    const int row_bytes = dim / per_byte;
    width = row_bytes % kLaneVec == 0 ? kLaneVec : row_bytes % 4 == 0 ? 4 : 1;
  }
  HWY_INLINE int place(int channel) const {
    const int byte = channel / per_byte;
    return (byte / width * per_byte + channel % per_byte) * width + byte % width;
  }
  void enter(const float* o, float* ordered) const {
    for (int c = 0; c < dim; ++c) ordered[place(c)] = o[c];
  }
  void leave(const float* ordered, float* o) const {
    for (int c = 0; c < dim; ++c) o[c] = ordered[place(c)];
  }
  int per_byte, dim, width;
};

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_QUANT_VALUES_INL_H_
