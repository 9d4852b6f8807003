// P.V of quantised values: the value grid is folded into the probabilities, the codes are added up.
//
// The codes of some windows are first spread to one byte each, in channel order, so that the sums
// need not know how they are packed. A byte holds its code times a power of two that depends on its
// channel; it is taken out of the sums.
#if defined(QEVICT_KERNELS_QUANT_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_QUANT_VALUES_INL_H_
#undef QEVICT_KERNELS_QUANT_VALUES_INL_H_
#else
#define QEVICT_KERNELS_QUANT_VALUES_INL_H_
#endif

#include "kernels/quant_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

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

inline constexpr int kCodeBytes = 16384;

// Spread codes of some windows of a group: [lanes][window][stride].
struct CodeWalk {
  const std::uint8_t* codes;
  std::ptrdiff_t stride;
  int first_lane, lanes, window;
};

// Adds the tokens to kVecs vectors of o. p: [window][H][kLanes].
template <int H, int kVecs>
HWY_INLINE void add_codes(const CodeWalk& walk, const float* HWY_RESTRICT p, const float* unscale,
                          float* o, std::ptrdiff_t o_stride) {
  const LaneTag d;
  using V = Vec<LaneTag>;
  V sum[H][kVecs];
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < kVecs; ++i) sum[h][i] = hn::Zero(d);
  }
  const std::uint8_t* row = walk.codes;
  for (int n = 0; n < walk.lanes; ++n) {
    Separate<kVecs> pt(p + walk.first_lane + n);
    for (int j = 0; j < walk.window; ++j, row += walk.stride, pt.advance(H * kLanes)) {
      V code[kVecs];
      for (int i = 0; i < kVecs; ++i) {
        code[i] = hn::ConvertTo(d, load_u8(d, row + i * kLaneVec));
      }
      for (int h = 0; h < H; ++h) {
        for (int i = 0; i < kVecs; ++i) {
          sum[h][i] = hn::MulAdd(code[i], hn::Set(d, pt.at[i][h * kLanes]), sum[h][i]);
        }
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < kVecs; ++i) {
      float* at = o + h * o_stride + i * kLaneVec;
      const auto scale = hn::Load(d, unscale + i * kLaneVec % kCodeBlock);
      hn::Store(hn::MulAdd(sum[h][i], scale, hn::Load(d, at)), d, at);
    }
  }
}

// All channels of o [H][o_stride], padded to whole blocks.
template <int H>
HWY_INLINE void add_all_codes(CodeWalk walk, const float* p, const float* unscale, float* o,
                              std::ptrdiff_t o_stride) {
  constexpr int kVecs = H * 4 <= kRegisters / 2 ? 4 : 2;
  const std::uint8_t* codes = walk.codes;
  int c = 0;
  for (; c + kVecs * kLaneVec <= walk.stride; c += kVecs * kLaneVec) {
    walk.codes = codes + c;
    add_codes<H, kVecs>(walk, p, unscale, o + c, o_stride);
  }
  for (; c < walk.stride; c += kLaneVec) {
    walk.codes = codes + c;
    add_codes<H, 1>(walk, p, unscale + c % kCodeBlock, o + c, o_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_QUANT_VALUES_INL_H_
