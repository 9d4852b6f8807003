// Helpers of the SIMD kernels; compiled once per Highway target. Include only from *-inl.h and from
// files that use foreach_target.h.
#if defined(QEVICT_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_SIMD_INL_H_
#undef QEVICT_KERNELS_SIMD_INL_H_
#else
#define QEVICT_KERNELS_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors over the 16 lanes of a group: 16, 8 or 4 at a time.
using LaneTag = hn::CappedTag<float, kLanes>;
inline constexpr int kLaneVec = static_cast<int>(hn::MaxLanes(LaneTag()));

#if HWY_TARGET <= HWY_AVX3
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif
// Query heads that are worked on together: two tokens' scores of each fill half of the registers.
inline constexpr int kHeadBlock = kRegisters / 4;

template <class D>
using Vec = hn::Vec<D>;

// As many fp16 as D has lanes, widened.
template <class D>
HWY_INLINE Vec<D> load_f16(D d, const fp16_t* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

// As many bytes as D has lanes, widened to 32 bits.
template <class D>
HWY_INLINE Vec<hn::RebindToSigned<D>> load_u8(D, const std::uint8_t* p) {
  const hn::Rebind<std::uint8_t, D> d8;
  return hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(d8, p));
}

// exp(x) for x <= 0, -inf included; relative error below 1.2e-7 + 3e-9 |x|. Results below 2^-124
// become 0.
template <class D>
HWY_INLINE Vec<D> exp_nonpositive(D d, Vec<D> x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low mantissa bits: the exponent to add.
  const auto shifter = hn::Set(d, 0x1.8p23F);
  const auto in_range = hn::Ge(x, hn::Set(d, -86.0F));
  const auto shifted = hn::MulAdd(x, hn::Set(d, 0x1.715476p0F), shifter);
  const auto n = hn::Sub(shifted, shifter);
#if HWY_TARGET <= HWY_AVX2
  const auto r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e43p-1F), x);
#else
  // Without a fused multiplication the first product must be exact: a short constant, and its rest.
  auto r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e4p-1F), x);
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.7f7d1cp-20F), r);
#endif
  // exp(r) on |r| <= ln 2 / 2: interpolation at Chebyshev nodes, error 1.1e-8.
  auto y = hn::MulAdd(hn::Set(d, 0x1.6d4334p-10F), r, hn::Set(d, 0x1.123dap-7F));
  y = hn::MulAdd(y, r, hn::Set(d, 0x1.5554e8p-5F));
  y = hn::MulAdd(y, r, hn::Set(d, 0x1.55547cp-3F));
  y = hn::MulAdd(y, r, hn::Set(d, 0.5F));
  const auto one = hn::Set(d, 1.0F);
  y = hn::MulAdd(hn::MulAdd(y, r, one), r, one);
  const auto bits = hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::BitCast(d, hn::IfThenElseZero(hn::RebindMask(di, in_range), bits));
}

// n pointers to the same floats that the compiler takes for different ones. It then multiplies by a
// broadcast memory operand each time instead of keeping the broadcast in a register for several
// uses: on AVX-512 that is up to 15 % faster.
template <int n>
struct Separate {
  HWY_INLINE explicit Separate(const float* p) {
    for (int i = 0; i < n; ++i) {
      at[i] = p;
#if HWY_TARGET <= HWY_AVX3
      asm volatile("" : "+r"(at[i]));
#endif
    }
  }
  HWY_INLINE void advance(std::ptrdiff_t floats) {
    for (int i = 0; i < n; ++i) at[i] += floats;
  }
  const float* at[n];
};

// Into the second cache level: the next group is larger than the first.
HWY_INLINE void prefetch(const void* p, std::ptrdiff_t ahead_bytes) {
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + ahead_bytes), 0, 2);
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_SIMD_INL_H_
