// Packs one key panel of fp16 rows into fp32: keys [D][tokens] and values [tokens][D], both in
// register blocks.
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

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
