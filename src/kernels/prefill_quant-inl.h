// Packs key panels of quantised windows into fp32 (see prefill_pack-inl.h): dequantised, keys
// rotated to their positions.
#if defined(QEVICT_KERNELS_PREFILL_QUANT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_PREFILL_QUANT_INL_H_
#undef QEVICT_KERNELS_PREFILL_QUANT_INL_H_
#else
#define QEVICT_KERNELS_PREFILL_QUANT_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/prefill_pack-inl.h"
#include "kernels/quant_data-inl.h"

// The targets without real vectors have no tile (prefill_simd.cpp).
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// First n <= kN bytes as integers.
HWY_INLINE hn::Vec<DI> load_bytes_n(const std::uint8_t* p, int n) {
  const hn::Rebind<std::uint8_t, DF> du8;
  alignas(16) std::uint8_t copy[16] = {};
  if (n >= kN) return hn::PromoteTo(DI(), hn::LoadU(du8, p));
  if (n > 0) std::memcpy(copy, p, n);
  return hn::PromoteTo(DI(), hn::Load(du8, copy));
}

// Codes of token j in 16 windows (the first `left` of kN) of one channel. row: the channel's bytes.
HWY_INLINE VF key_codes(const Geometry& g, const std::uint8_t* row, int lanes, int left, int j) {
  const DF d;
  const DI di;
  const auto field = [&](std::ptrdiff_t first, int width) HWY_ATTR {
    const int per_byte = 8 / width;
    const auto bytes = load_bytes_n(row + (first + j / per_byte) * lanes, left);
    return hn::And(hn::ShiftRightSame(bytes, j % per_byte * width), hn::Set(di, (1 << width) - 1));
  };
  if (g.quant_bits != 3) return hn::ConvertTo(d, field(0, g.quant_bits));
  return hn::ConvertTo(d, hn::Or(field(0, 2), hn::ShiftLeft<2>(field(g.window / 4, 1))));
}

// Keys of one Quantized group, rotated to their absolute positions: base phase, then offset j.
inline void pack_quant_keys(const PrefillParams& p, const Geometry& g, const PrefillPanel& panel,
                            int i, const QuantView& view, const KeyRange& range, const float* turn,
                            const KeyPanel& keys) {
  const DF d;
  const int n = view.lanes;
  const int pairs = g.head_dim / 2;
  const std::ptrdiff_t channel_bytes = std::ptrdiff_t{g.window * g.quant_bits / 8} * n;
  const float* base = p.phases + static_cast<std::ptrdiff_t>(panel.group + i) * pairs * 2 * kLanes;
  const bool neox = g.pairing == RopePairing::Neox;
  const KeyGrids grids(g, view, range);
  for (int pair = 0; pair < pairs; ++pair, base += 2 * kLanes) {
    const int c0 = neox ? pair : 2 * pair;
    const int c1 = neox ? pair + pairs : 2 * pair + 1;
    for (int u = 0; u < kLanes; u += kN) {
      const int left = n - u;
      VF scale0, scale1, zero0, zero1;
      grids.load(c0, u, scale0, zero0);
      grids.load(c1, u, scale1, zero1);
      const VF base_cos = hn::LoadU(d, base + u);
      const VF base_sin = hn::LoadU(d, base + kLanes + u);
      const std::uint8_t* row0 = view.k_codes + c0 * channel_bytes + u;
      const std::uint8_t* row1 = view.k_codes + c1 * channel_bytes + u;
      for (int jj = 0; jj < panel.nj; ++jj) {
        const int j = panel.j0 + jj;
        const VF x0 = hn::MulAdd(key_codes(g, row0, n, left, j), scale0, zero0);
        const VF x1 = hn::MulAdd(key_codes(g, row1, n, left, j), scale1, zero1);
        const VF turn_cos = hn::Set(d, turn[j * g.head_dim + pair]);
        const VF turn_sin = hn::Set(d, turn[j * g.head_dim + pairs + pair]);
        const VF cos = hn::MulSub(base_cos, turn_cos, hn::Mul(base_sin, turn_sin));
        const VF sin = hn::MulAdd(base_sin, turn_cos, hn::Mul(base_cos, turn_sin));
        const int token = (i * panel.nj + jj) * kLanes + u;
        hn::Store(hn::MulSub(x0, cos, hn::Mul(x1, sin)), d, keys.at(token, c0));
        hn::Store(hn::MulAdd(x0, sin, hn::Mul(x1, cos)), d, keys.at(token, c1));
      }
    }
  }
}

// One value row: D codes and their grid.
HWY_INLINE void pack_quant_value(const CodeSpreader& spreader, const std::uint8_t* row, float scale,
                                 float zero, int token, const ValuePanel& out) {
  const DF d;
  HWY_ALIGN std::uint8_t codes[kMaxHeadDim];
  spreader.spread(row, 1, out.head_dim, kMaxHeadDim, codes);
  for (int c = 0; c < out.head_dim; c += kN) {
    const VF unit = hn::Mul(hn::Load(d, spreader.unscale + c % kCodeBlock), hn::Set(d, scale));
    const VF code = hn::ConvertTo(d, load_u8(d, codes + c));
    hn::Store(hn::MulAdd(code, unit, hn::Set(d, zero)), d, out.at(token, c));
  }
}

inline void pack_quantized(const PrefillParams& p, const PrefillPanel& panel, const float* turn,
                           const KeyPanel& keys, const ValuePanel& values) {
  for (int i = 0; i < panel.n_groups; ++i) {
    const Geometry& g = quantized_geometry(p, panel.group + i);
    const std::ptrdiff_t row_bytes = static_cast<std::ptrdiff_t>(g.head_dim) * g.quant_bits / 8;
    const KeyRange range(g, p.quantized_range, p.kv_head);
    const CodeSpreader spreader(g.quant_bits);
    const GroupRef& group = p.quantized[panel.group + i];
    const QuantView view = quant_view(g, group.data, group.lanes, p.kv_head);
    const ValueGrid grid(g, view, p.quantized_range, p.kv_head);
    pack_quant_keys(p, g, panel, i, view, range, turn, keys);
    for (int jj = 0; jj < panel.nj; ++jj) {
      const int j = panel.j0 + jj;
      for (int lane = 0; lane < panel.lanes; ++lane) {
        const int token = (i * panel.nj + jj) * kLanes + lane;
        if (lane >= view.lanes) {
          pack_value_row(nullptr, token, values);
          continue;
        }
        const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(lane) * g.window + j;
        pack_quant_value(spreader, view.v_codes + row * row_bytes, grid.scale[j * kLanes + lane],
                         grid.zero[j * kLanes + lane], token, values);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif  // QEVICT_KERNELS_PREFILL_QUANT_INL_H_
