// Register-blocked products and the softmax of a prefill panel, for one Highway target.
//
// Included once per target (foreach_target.h), hence the toggled guard.
#if defined(QEVICT_KERNELS_PREFILL_MICRO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_PREFILL_MICRO_INL_H_
#undef QEVICT_KERNELS_PREFILL_MICRO_INL_H_
#else
#define QEVICT_KERNELS_PREFILL_MICRO_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/prefill_plan.h"

// The targets without real vectors have no tile (prefill_simd.cpp).
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kLanes>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
constexpr int kN = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kSub = kLanes / kN;  // hardware vectors in a logical vector of 16 keys

// kRowBlock query rows by kVecBlock vectors of keys (or of value channels) fill the registers.
constexpr int kRowBlock = HWY_TARGET <= HWY_AVX3 ? 8 : 6;  // 32 or 16 registers
constexpr int kVecBlock = 2;                               // the callers know 1 and 2
constexpr int kBlockFloats = kVecBlock * kN;
static_assert(kRowBlock <= kMaxRowBlock && kBlockFloats <= kMaxBlockFloats);
static_assert(kChunkRows % kRowBlock == 0);

// s[r][0 .. kVecs) = q . k over D channels. q: [D][kRowBlock], k: [D][kBlockFloats], both packed.
template <int kVecs>
HWY_INLINE void multiply_keys(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k,
                              int head_dim, float* HWY_RESTRICT s) {
  const DF d;
  VF sum[kRowBlock][kVecs];
  for (int r = 0; r < kRowBlock; ++r) {
    for (int v = 0; v < kVecs; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int c = 0; c < head_dim; ++c) {
    VF key[kVecs];
    for (int v = 0; v < kVecs; ++v) key[v] = hn::Load(d, k + v * kN);
    for (int r = 0; r < kRowBlock; ++r) {
      const VF query = hn::Set(d, q[r]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] = hn::MulAdd(query, key[v], sum[r][v]);
    }
    q += kRowBlock;
    k += kBlockFloats;
  }
  for (int r = 0; r < kRowBlock; ++r) {
    for (int v = 0; v < kVecs; ++v) hn::Store(sum[r][v], d, s + r * kPanelTokens + v * kN);
  }
}

// o[r][0 .. kVecs) += sum over the panel's tokens of p[r][token] * v[token].
// v: [kPanelTokens][stride]; only the first `lanes` tokens of each group of 16 can have p > 0.
template <int kVecs>
HWY_NOINLINE void multiply_values(const float* HWY_RESTRICT p, const float* HWY_RESTRICT v,
                                  int stride, int n_vectors, int lanes, float* HWY_RESTRICT o,
                                  int o_stride) {
  const DF d;
  VF sum[kRowBlock][kVecs];
  for (int r = 0; r < kRowBlock; ++r) {
    for (int i = 0; i < kVecs; ++i) sum[r][i] = hn::Load(d, o + r * o_stride + i * kN);
  }
  for (int n = 0; n < n_vectors; ++n) {
    const float* HWY_RESTRICT pn = p + n * kLanes;
    const float* HWY_RESTRICT vn = v + static_cast<std::ptrdiff_t>(n) * kLanes * stride;
    for (int t = 0; t < lanes; ++t) {
      VF value[kVecs];
      for (int i = 0; i < kVecs; ++i) value[i] = hn::Load(d, vn + i * kN);
      for (int r = 0; r < kRowBlock; ++r) {
        const VF prob = hn::Set(d, pn[r * kPanelTokens]);
        for (int i = 0; i < kVecs; ++i) sum[r][i] = hn::MulAdd(prob, value[i], sum[r][i]);
      }
      ++pn;
      vn += stride;
    }
  }
  for (int r = 0; r < kRowBlock; ++r) {
    for (int i = 0; i < kVecs; ++i) hn::Store(sum[r][i], d, o + r * o_stride + i * kN);
  }
}

// 2^x for x <= about 120, relative error below 2e-7; exactly 0 for x <= -127 (so for -inf).
HWY_INLINE VF exp2_nonpositive(VF x) {
  const DF d;
  const DI di;
  x = hn::Max(x, hn::Set(d, -127.0F));
  // The sum's low bits are round(x); the shift moves them into the exponent and the rest out.
  const VF magic = hn::Set(d, 12582912.0F);
  const VF t = hn::Add(x, magic);
  const VF f = hn::Sub(x, hn::Sub(t, magic));
  VF y = hn::MulAdd(hn::Set(d, 0.0013264724984765053F), f, hn::Set(d, 0.009671512991189957F));
  y = hn::MulAdd(y, f, hn::Set(d, 0.05550733581185341F));
  y = hn::MulAdd(y, f, hn::Set(d, 0.24022242426872253F));
  y = hn::MulAdd(y, f, hn::Set(d, 0.6931470036506653F));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0F));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::BitCast(di, t))));
}

// How far (in powers of two) a score may pass the reference maximum before the row is rescaled.
constexpr float kLazyRange = 8.0F;

// Raises the reference maximum of a row and rescales what was summed under the old one.
inline HWY_NOINLINE void raise_maximum(float new_max, float* m, float* l, float* o, int d_pad) {
  const DF d;
  const VF scale = hn::Set(d, std::exp2(*m - new_max));  // 0 for the first panel, m = -inf
  for (int i = 0; i < kLanes; i += kN) hn::Store(hn::Mul(hn::Load(d, l + i), scale), d, l + i);
  for (int i = 0; i < d_pad; i += kN) hn::Store(hn::Mul(hn::Load(d, o + i), scale), d, o + i);
  *m = new_max;
}

// Scores that the row may not see become -inf.
HWY_INLINE void mask_scores(const PrefillPanel& panel, std::int32_t row_limit, float* s) {
  const DF d;
  const DI di;
  const auto hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  const bool rows = panel.from_rows();
  for (int n = 0; n < panel.n_vectors; ++n) {
    const std::int32_t limit = rows ? row_limit - panel.row[n] : panel.valid[n];
    for (int i = 0; i < kSub; ++i) {
      const auto lane = hn::Iota(di, i * kN);
      const auto key = rows ? hn::Mul(lane, hn::Set(di, panel.lane_stride)) : lane;
      float* p = s + n * kLanes + i * kN;
      const auto seen = hn::RebindMask(d, hn::Lt(key, hn::Set(di, limit)));
      hn::Store(hn::IfThenElse(seen, hn::Load(d, p), hidden), d, p);
    }
  }
}

// The state of one query row.
struct RowState {
  float* m;
  float* l;
  float* o;
};

// Turns a row's scores into probabilities relative to its reference maximum, in place, and adds
// them to l. Windows' sums of p^power go to window[group of the panel][window_stride] (null: not
// wanted).
template <bool kPower>
HWY_INLINE void softmax_row(const PrefillPanel& panel, float lazy_range, float power, int d_pad,
                            float* HWY_RESTRICT s, const RowState& row, float* window,
                            std::ptrdiff_t window_stride) {
  const DF d;
  const int n_hw = panel.n_vectors * kSub;
  VF max = hn::Load(d, s);
  for (int i = 1; i < n_hw; ++i) max = hn::Max(max, hn::Load(d, s + i * kN));
  if (!hn::AllFalse(d, hn::Gt(max, hn::Set(d, *row.m + lazy_range)))) {
    raise_maximum(hn::GetLane(hn::MaxOfLanes(d, max)), row.m, row.l, row.o, d_pad);
  }
  const VF m = hn::Set(d, *row.m);
  const VF exponent = hn::Set(d, power);
  for (int g = 0; g < panel.n_groups; ++g) {
    float* sg = s + g * panel.nj * kLanes;
    for (int i = 0; i < kSub; ++i) {
      VF sum = hn::Zero(d);
      VF power_sum = hn::Zero(d);
      for (int j = 0; j < panel.nj; ++j) {
        float* p = sg + j * kLanes + i * kN;
        const VF x = hn::Sub(hn::Load(d, p), m);
        const VF y = exp2_nonpositive(x);
        hn::Store(y, d, p);
        sum = hn::Add(sum, y);
        if constexpr (kPower) {
          power_sum = hn::Add(power_sum, exp2_nonpositive(hn::Mul(x, exponent)));
        }
      }
      float* l = row.l + i * kN;
      hn::Store(hn::Add(hn::Load(d, l), sum), d, l);
      if (window != nullptr) {
        hn::Store(kPower ? power_sum : sum, d, window + g * window_stride + i * kN);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
