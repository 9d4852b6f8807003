// Packs one key panel into fp32: keys [D][tokens] and values [tokens][D], both in register blocks.
//
// Token v * 16 + lane is lane `lane` of the panel's vector v. Included once per Highway target.
#if defined(QEVICT_KERNELS_PREFILL_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_PREFILL_PACK_INL_H_
#undef QEVICT_KERNELS_PREFILL_PACK_INL_H_
#else
#define QEVICT_KERNELS_PREFILL_PACK_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/prefill_micro-inl.h"

// The targets without real vectors have no tile (prefill_simd.cpp).
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// A packed key panel: [block of kVecBlock vectors][D][kBlockFloats].
struct KeyPanel {
  float* data;
  int head_dim;
  // Where channel c of the hardware vector that holds `token` lives.
  float* at(int token, int c) const {
    const int block = token / kBlockFloats;
    return data + (static_cast<std::ptrdiff_t>(block) * head_dim + c) * kBlockFloats +
           token % kBlockFloats;
  }
};

// A packed value panel: [block of `width` channels][kPanelTokens][width], width a multiple of kN.
struct ValuePanel {
  float* data;
  int head_dim;
  int width;
  int n_blocks;
  float* at(int token, int c) const {
    return data + (static_cast<std::ptrdiff_t>(c / width) * kPanelTokens + token) * width +
           c % width;
  }
};

// Block width that splits the channels evenly.
inline ValuePanel value_panel(float* data, int head_dim) {
  const int vectors = (head_dim + kN - 1) / kN;
  const int blocks = (vectors + kVecBlock - 1) / kVecBlock;
  const int width = (vectors + blocks - 1) / blocks * kN;
  return {.data = data,
          .head_dim = head_dim,
          .width = width,
          .n_blocks = (vectors * kN + width - 1) / width};
}

using DH = hn::Rebind<hwy::float16_t, DF>;

HWY_INLINE VF load_half(const fp16_t* p) {
  return hn::PromoteTo(DF(), hn::LoadU(DH(), reinterpret_cast<const hwy::float16_t*>(p)));
}

// The same for the first n <= kN values; the rest is 0 and not read.
HWY_INLINE VF load_half_n(const fp16_t* p, int n) {
  if (n >= kN) return load_half(p);
  alignas(32) fp16_t copy[kN] = {};
  if (n > 0) std::memcpy(copy, p, n * sizeof(fp16_t));
  return load_half(copy);
}

// First n <= kN bytes as integers.
HWY_INLINE hn::Vec<DI> load_bytes_n(const std::uint8_t* p, int n) {
  const hn::Rebind<std::uint8_t, DF> du8;
  alignas(16) std::uint8_t copy[16] = {};
  if (n >= kN) return hn::PromoteTo(DI(), hn::LoadU(du8, p));
  if (n > 0) std::memcpy(copy, p, n);
  return hn::PromoteTo(DI(), hn::Load(du8, copy));
}

// One value row in fp16 (null: zeros).
HWY_INLINE void pack_value_row(const fp16_t* row, int token, const ValuePanel& out) {
  const DF d;
  for (int c = 0; c < out.head_dim; c += kN) {
    const VF x = row == nullptr ? hn::Zero(d) : load_half_n(row + c, out.head_dim - c);
    hn::Store(x, d, out.at(token, c));
  }
}

// Four key rows become four neighbouring tokens of each channel: a transposition in 4 x 4 blocks.
HWY_INLINE void pack_key_rows(const fp16_t* const rows[4], int token, const KeyPanel& out) {
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> d2;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  float* p = out.at(token, 0);
  const auto load = [&](int r, int c) HWY_ATTR {
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(rows[r] + c)));
  };
  for (int c = 0; c < out.head_dim; c += 4, p += 4 * kBlockFloats) {
    const auto r0 = load(0, c);
    const auto r1 = load(1, c);
    const auto r2 = load(2, c);
    const auto r3 = load(3, c);
    const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(d, r0, r1));
    const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(d, r2, r3));
    const auto hi01 = hn::BitCast(d2, hn::InterleaveUpper(d, r0, r1));
    const auto hi23 = hn::BitCast(d2, hn::InterleaveUpper(d, r2, r3));
    hn::Store(hn::BitCast(d, hn::InterleaveLower(d2, lo01, lo23)), d, p);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(d2, lo01, lo23)), d, p + kBlockFloats);
    hn::Store(hn::BitCast(d, hn::InterleaveLower(d2, hi01, hi23)), d, p + 2 * kBlockFloats);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(d2, hi01, hi23)), d, p + 3 * kBlockFloats);
  }
}

// Sinks and region windows. Rows at or beyond row_limit are not read; they become zeros.
inline void pack_rows(const PrefillParams& p, const PrefillPanel& panel, int row_limit,
                      const fp16_t* zero_row, const KeyPanel& keys, const ValuePanel& values) {
  const std::ptrdiff_t dim = p.geometry->head_dim;
  for (int v = 0; v < panel.n_vectors; ++v) {
    for (int lane = 0; lane < kLanes; lane += 4) {
      const fp16_t* rows[4];
      for (int i = 0; i < 4; ++i) {
        const int row = panel.row[v] + (lane + i) * panel.lane_stride;
        const int token = v * kLanes + lane + i;
        const bool seen = row < row_limit;
        rows[i] = seen ? p.k_rows + row * dim : zero_row;
        if (lane + i < panel.lanes) {
          pack_value_row(seen ? p.v_rows + row * dim : nullptr, token, values);
        }
      }
      pack_key_rows(rows, v * kLanes + lane, keys);
    }
  }
}

inline void pack_full(const PrefillParams& p, const PrefillPanel& panel, const KeyPanel& keys,
                      const ValuePanel& values) {
  const Geometry& g = *p.geometry;
  const DF d;
  const int dim = g.head_dim;
  for (int i = 0; i < panel.n_groups; ++i) {
    const GroupRef& group = p.full[panel.group + i];
    const std::ptrdiff_t n = group.lanes;
    const std::ptrdiff_t part = n * g.window * dim;  // elements of K, and of V
    const auto* k = reinterpret_cast<const fp16_t*>(group.data) + 2 * part * p.kv_head;
    const fp16_t* v = k + part;
    for (int jj = 0; jj < panel.nj; ++jj) {
      const int j = panel.j0 + jj;
      const int token = (i * panel.nj + jj) * kLanes;
      const fp16_t* kj = k + j * dim * n;
      for (int c = 0; c < dim; ++c) {
        for (int u = 0; u < kLanes; u += kN) {
          hn::Store(load_half_n(kj + c * n + u, group.lanes - u), d, keys.at(token + u, c));
        }
      }
      for (int lane = 0; lane < panel.lanes; ++lane) {
        const fp16_t* row = lane < n ? v + (lane * g.window + j) * dim : nullptr;
        pack_value_row(row, token + lane, values);
      }
    }
  }
}

// One Quantized group's parts for a KV head (layout.h), n = lanes.
struct QuantGroupView {
  const std::uint8_t* k_codes;
  const fp16_t* k_scale;
  const fp16_t* k_zero;
  const std::uint8_t* v_codes;
  const fp16_t* v_scale;
  const fp16_t* v_zero;
};

inline QuantGroupView view_quant_group(const Geometry& g, const GroupRef& group, int kv_head) {
  const std::size_t n = group.lanes;
  const std::size_t codes = g.code_bytes_per_head() * n;
  const std::size_t head = g.quantized_window_bytes() / g.n_kv_heads * n;
  const std::uint8_t* k = group.data + head * kv_head;
  const auto* k_scale = reinterpret_cast<const fp16_t*>(k + codes);
  const fp16_t* k_zero = k_scale + g.head_dim * n;
  const auto* v = reinterpret_cast<const std::uint8_t*>(k_zero + g.head_dim * n);
  const auto* v_scale = reinterpret_cast<const fp16_t*>(v + codes);
  return {k, k_scale, k_zero, v, v_scale, v_scale + g.window * n};
}

// Codes of 16 windows' keys at channel c, in-window offset j, dequantised.
struct KeyGrid {
  VF scale;
  VF zero;
};

HWY_INLINE VF dequantize(hn::Vec<DI> bytes, int shift, int mask, const KeyGrid& grid) {
  const DI di;
  const auto code = hn::And(hn::ShiftRightSame(bytes, shift), hn::Set(di, mask));
  return hn::MulAdd(hn::ConvertTo(DF(), code), grid.scale, grid.zero);
}

// Keys of one Quantized group, rotated to their absolute positions: base phase, then offset j.
inline void pack_quant_keys(const PrefillParams& p, const PrefillPanel& panel, int i,
                            const QuantGroupView& view, int n, const float* turn,
                            const KeyPanel& keys) {
  const Geometry& g = *p.geometry;
  const DF d;
  const int pairs = g.head_dim / 2;
  const int bits = g.quant_bits;
  const int per_byte = 8 / bits;
  const std::ptrdiff_t channel_bytes = static_cast<std::ptrdiff_t>(g.window) * bits / 8;
  const int mask = (1 << bits) - 1;
  const float* base = p.phases + static_cast<std::ptrdiff_t>(panel.group + i) * pairs * 2 * kLanes;
  const bool neox = g.pairing == RopePairing::Neox;
  for (int pair = 0; pair < pairs; ++pair, base += 2 * kLanes) {
    const int c0 = neox ? pair : 2 * pair;
    const int c1 = neox ? pair + pairs : 2 * pair + 1;
    for (int u = 0; u < kLanes; u += kN) {
      const int left = n - u;
      const std::ptrdiff_t at0 = static_cast<std::ptrdiff_t>(c0) * n + u;
      const std::ptrdiff_t at1 = static_cast<std::ptrdiff_t>(c1) * n + u;
      const KeyGrid grid0 = {load_half_n(view.k_scale + at0, left),
                             load_half_n(view.k_zero + at0, left)};
      const KeyGrid grid1 = {load_half_n(view.k_scale + at1, left),
                             load_half_n(view.k_zero + at1, left)};
      const VF base_cos = hn::LoadU(d, base + u);
      const VF base_sin = hn::LoadU(d, base + kLanes + u);
      for (int jj = 0; jj < panel.nj; ++jj) {
        const int j = panel.j0 + jj;
        const std::ptrdiff_t byte = static_cast<std::ptrdiff_t>(j / per_byte) * n + u;
        const int shift = j % per_byte * bits;
        const VF x0 = dequantize(load_bytes_n(view.k_codes + c0 * channel_bytes * n + byte, left),
                                 shift, mask, grid0);
        const VF x1 = dequantize(load_bytes_n(view.k_codes + c1 * channel_bytes * n + byte, left),
                                 shift, mask, grid1);
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

// One value row: codes of D channels with one grid.
HWY_INLINE void pack_quant_value(const std::uint8_t* codes, int bits, float scale, float zero,
                                 int token, const ValuePanel& out) {
  const DF d;
  const DI di;
  const hn::RebindToUnsigned<DF> du;
  const VF vscale = hn::Set(d, scale);
  const VF vzero = hn::Set(d, zero);
  const auto mask = hn::Set(du, (1U << bits) - 1);
  const auto shift = hn::And(
      hn::Mul(hn::Iota(du, 0), hn::Set(du, static_cast<std::uint32_t>(bits))), hn::Set(du, 31U));
  const auto in_low = hn::MaskFromVec(hn::BitCast(
      du, hn::VecFromMask(d, hn::RebindMask(d, hn::Lt(hn::Iota(di, 0), hn::Set(di, 32 / bits))))));
  for (int c = 0; c < out.head_dim; c += kN) {
    const int left = out.head_dim - c < kN ? out.head_dim - c : kN;
    std::uint32_t word[2] = {};
    std::memcpy(word, codes + c * bits / 8, left * bits / 8);
    const auto words = hn::IfThenElse(in_low, hn::Set(du, word[0]), hn::Set(du, word[1]));
    const auto code = hn::And(hn::Shr(words, shift), mask);
    hn::Store(hn::MulAdd(hn::ConvertTo(d, hn::BitCast(di, code)), vscale, vzero), d,
              out.at(token, c));
  }
}

inline void pack_quantized(const PrefillParams& p, const PrefillPanel& panel, const float* turn,
                           const KeyPanel& keys, const ValuePanel& values) {
  const Geometry& g = *p.geometry;
  const std::ptrdiff_t row_bytes = static_cast<std::ptrdiff_t>(g.head_dim) * g.quant_bits / 8;
  for (int i = 0; i < panel.n_groups; ++i) {
    const GroupRef& group = p.quantized[panel.group + i];
    const int n = group.lanes;
    const QuantGroupView view = view_quant_group(g, group, p.kv_head);
    pack_quant_keys(p, panel, i, view, n, turn, keys);
    for (int jj = 0; jj < panel.nj; ++jj) {
      const int j = panel.j0 + jj;
      for (int lane = 0; lane < panel.lanes; ++lane) {
        const int token = (i * panel.nj + jj) * kLanes + lane;
        if (lane >= n) {
          pack_value_row(nullptr, token, values);
          continue;
        }
        const std::ptrdiff_t grid = static_cast<std::ptrdiff_t>(j) * n + lane;
        pack_quant_value(
            view.v_codes + (static_cast<std::ptrdiff_t>(lane) * g.window + j) * row_bytes,
            g.quant_bits, fp16_to_fp32(view.v_scale[grid]), fp16_to_fp32(view.v_zero[grid]), token,
            values);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
