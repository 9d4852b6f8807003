// The dense passes of every SIMD instruction set: the prompt kernel's register-blocked products
// between whole matrices.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense_simd.cpp"
#define HWY_DISABLED_TARGETS HWY_SSSE3  // not offered
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/prefill_micro-inl.h"
#include "kernels/prefill_pack-inl.h"
#include "kernels/prefill_quant-inl.h"
#include "kernels/tables.h"
#include "kernels/target_ops.h"

// Scratch of both products, in floats: packed rows of q or out, one panel of keys or values, and a
// block of rows by a panel of tokens.
#if HWY_ONCE
namespace qevict {

std::size_t dense_scratch_bytes(int n_q, int head_dim) {
  const std::size_t rows = (n_q + kMaxRowBlock - 1) / kMaxRowBlock * kMaxRowBlock + kMaxRowBlock;
  const std::size_t width = (head_dim + kMaxBlockFloats - 1) / kMaxBlockFloats * kMaxBlockFloats;
  return sizeof(float) *
         (rows * width + kPanelTokens * width + std::size_t{kMaxRowBlock} * kPanelTokens);
}

std::size_t dense_restore_scratch_bytes(const Geometry& g) {
  const std::size_t width = (g.head_dim + kMaxBlockFloats - 1) / kMaxBlockFloats * kMaxBlockFloats;
  const std::size_t panels = sizeof(float) * (2 * kPanelTokens + 4) * width;
  // The reference works window by window, on all KV heads.
  const std::size_t rows = static_cast<std::size_t>(g.n_kv_heads) * g.window * g.head_dim;
  return std::max(panels, sizeof(float) * 2 * rows + g.quantized_window_bytes());
}

}  // namespace qevict
#endif  // HWY_ONCE

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

const TargetDenseOps* get_dense_ops() { return nullptr; }

#else

constexpr fp16_t kNoRow[kMaxHeadDim] = {};

struct DenseScratch {
  DenseScratch(void* scratch, int n_q, int head_dim)
      : width((head_dim + kMaxBlockFloats - 1) / kMaxBlockFloats * kMaxBlockFloats),
        n_blocks((n_q + kRowBlock - 1) / kRowBlock),
        panel(static_cast<float*>(scratch)),
        block(panel + std::ptrdiff_t{kPanelTokens} * width),
        rows(block + std::ptrdiff_t{kMaxRowBlock} * kPanelTokens) {}
  int width;
  int n_blocks;
  float* panel;  // keys or values
  float* block;  // [kRowBlock][kPanelTokens]
  float* rows;   // [n_blocks][...]
};

void narrow_row(const float* from, int n, fp16_t* to) {
  for (int c = 0; c < n; ++c) to[c] = fp32_to_fp16(from[c]);
}

// Four tokens' rows from a packed key panel: the opposite of pack_key_rows().
HWY_INLINE void unpack_key_rows(const KeyPanel& keys, int token, float* out) {
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> d2;
  const std::ptrdiff_t dim = keys.head_dim;
  const float* p = keys.at(token, 0);
  for (int c = 0; c < dim; c += 4, p += 4 * kBlockFloats) {
    const auto c0 = hn::Load(d, p);
    const auto c1 = hn::Load(d, p + kBlockFloats);
    const auto c2 = hn::Load(d, p + 2 * kBlockFloats);
    const auto c3 = hn::Load(d, p + 3 * kBlockFloats);
    const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(d, c0, c1));
    const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(d, c2, c3));
    const auto hi01 = hn::BitCast(d2, hn::InterleaveUpper(d, c0, c1));
    const auto hi23 = hn::BitCast(d2, hn::InterleaveUpper(d, c2, c3));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, lo01, lo23)), d, out + c);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, lo01, lo23)), d, out + dim + c);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, hi01, hi23)), d, out + 2 * dim + c);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, hi01, hi23)), d, out + 3 * dim + c);
  }
}

void dense_restore(const DenseRestoreParams& p) noexcept {
  const Geometry& g = *p.geometry;
  const int dim = g.head_dim;
  const std::ptrdiff_t width =
      (dim + kMaxBlockFloats - 1) / kMaxBlockFloats * std::ptrdiff_t{kMaxBlockFloats};
  const KeyPanel keys{static_cast<float*>(p.scratch), dim};
  const ValuePanel values = value_panel(keys.data + kPanelTokens * width, dim);
  float* rows = keys.data + 2 * kPanelTokens * width;
  PrefillParams prefill;
  prefill.geometry = p.geometry;
  prefill.kv_head = p.kv_head;
  prefill.quantized = p.group;
  prefill.n_quantized = 1;
  prefill.quantized_range = p.range;
  prefill.phases = p.phases;
  PrefillPanel panel;
  panel.kind = PanelKind::Quantized;
  panel.lanes = p.group->lanes;
  for (int j0 = 0; j0 < g.window; j0 += kPanelVectors) {
    panel.j0 = j0;
    panel.nj = std::min(kPanelVectors, g.window - j0);
    panel.n_vectors = panel.nj;
    pack_quantized(prefill, panel, p.turn, keys, values);
    for (int jj = 0; jj < panel.nj; ++jj) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(j0 + jj) * dim;
      for (int lane = 0; lane < p.group->lanes; lane += 4) {
        unpack_key_rows(keys, jj * kLanes + lane, rows);
        for (int i = lane; i < std::min(lane + 4, p.group->lanes); ++i) {
          narrow_row(rows + (i - lane) * dim, dim, p.k[i] + at);
          for (int c = 0; c < dim; c += values.width) {
            narrow_row(values.at(jj * kLanes + i, c), std::min(values.width, dim - c),
                       p.v[i] + at + c);
          }
        }
      }
    }
  }
}

void dense_scores(const DenseScoresParams& p) noexcept {
  const int dim = p.head_dim;
  const DenseScratch scratch(p.scratch, p.n_q, dim);
  for (int row = 0; row < scratch.n_blocks * kRowBlock; ++row) {
    float* out = scratch.rows + std::ptrdiff_t{row / kRowBlock} * dim * kRowBlock + row % kRowBlock;
    const float* q = p.q + row * p.q_stride;
    for (int c = 0; c < dim; ++c) out[c * kRowBlock] = row < p.n_q ? q[c] * p.scale : 0.0F;
  }
  const KeyPanel keys{scratch.panel, dim};
  for (int first = 0; first < p.n_keys; first += kPanelTokens) {
    const int n = std::min(kPanelTokens, p.n_keys - first);
    const int n_hw = (n + kLanes - 1) / kLanes * kSub;
    for (int t = 0; t < n_hw * kN; t += 4) {
      const fp16_t* rows[4];
      for (int i = 0; i < 4; ++i) {
        rows[i] = t + i < n ? p.k + std::ptrdiff_t{first + t + i} * dim : kNoRow;
      }
      pack_key_rows(rows, t, keys);
    }
    for (int b = 0; b < scratch.n_blocks; ++b) {
      const float* q = scratch.rows + std::ptrdiff_t{b} * dim * kRowBlock;
      for (int v = 0; v < n_hw; v += kVecBlock) {
        const auto multiply = n_hw - v >= kVecBlock ? multiply_keys<kVecBlock> : multiply_keys<1>;
        multiply(q, keys.at(v * kN, 0), dim, scratch.block + v * kN);
      }
      for (int r = b * kRowBlock; r < std::min((b + 1) * kRowBlock, p.n_q); ++r) {
        std::memcpy(p.s + r * p.s_stride + first,
                    scratch.block + std::ptrdiff_t{r - b * kRowBlock} * kPanelTokens,
                    n * sizeof(float));
      }
    }
  }
}

void dense_values(const DenseValuesParams& p) noexcept {
  const int dim = p.head_dim;
  const DenseScratch scratch(p.scratch, p.n_q, dim);
  const ValuePanel values = value_panel(scratch.panel, dim);
  std::fill_n(scratch.rows, std::ptrdiff_t{scratch.n_blocks} * kRowBlock * scratch.width, 0.0F);
  for (int first = 0; first < p.n_keys; first += kPanelTokens) {
    const int n = std::min(kPanelTokens, p.n_keys - first);
    const int n_vectors = (n + kLanes - 1) / kLanes;
    for (int t = 0; t < n_vectors * kLanes; ++t) {
      pack_value_row(t < n ? p.v + std::ptrdiff_t{first + t} * dim : nullptr, t, values);
    }
    for (int b = 0; b < scratch.n_blocks; ++b) {
      for (int i = 0; i < kRowBlock; ++i) {
        const int row = b * kRowBlock + i;
        float* to = scratch.block + std::ptrdiff_t{i} * kPanelTokens;
        const int count = row < p.n_q ? n : 0;
        if (count > 0) std::memcpy(to, p.p + row * p.p_stride + first, count * sizeof(float));
        std::fill(to + count, to + n_vectors * kLanes, 0.0F);
      }
      for (int c = 0; c < dim; c += values.width) {
        const int n_vecs = std::min(values.width, (dim + kN - 1) / kN * kN - c) / kN;
        const auto multiply = n_vecs == kVecBlock ? multiply_values<kVecBlock> : multiply_values<1>;
        multiply(scratch.block, values.at(0, c), values.width, n_vectors, kLanes,
                 scratch.rows + std::ptrdiff_t{b} * kRowBlock * scratch.width + c, scratch.width);
      }
    }
  }
  for (int row = 0; row < p.n_q; ++row) {
    const float* from = scratch.rows + std::ptrdiff_t{row} * scratch.width;
    float* out = p.out + row * p.out_stride;
    for (int c = 0; c < dim; ++c) out[c] = p.add ? out[c] + from[c] : from[c];
  }
}

void dense_softmax_row(float* s, int n_visible, int n) noexcept {
  const DF d;
  const int whole = n_visible / kN * kN;
  const int left = n_visible - whole;
  // The last, partial vector is worked on in a copy that is padded with -inf.
  alignas(64) float tail[kN];
  std::fill_n(tail, kN, -std::numeric_limits<float>::infinity());
  std::copy_n(s + whole, left, tail);
  VF max = hn::Load(d, tail);
  for (int t = 0; t < whole; t += kN) max = hn::Max(max, hn::LoadU(d, s + t));
  const VF m = hn::MaxOfLanes(d, max);
  const VF log2e = hn::Set(d, 1.4426950408889634F);
  const auto exponential = [&](VF x)
                               HWY_ATTR { return exp2_nonpositive(hn::Mul(hn::Sub(x, m), log2e)); };
  VF sum = exponential(hn::Load(d, tail));
  hn::Store(sum, d, tail);
  for (int t = 0; t < whole; t += kN) {
    const VF y = exponential(hn::LoadU(d, s + t));
    hn::StoreU(y, d, s + t);
    sum = hn::Add(sum, y);
  }
  const VF inverse = hn::Div(hn::Set(d, 1.0F), hn::SumOfLanes(d, sum));
  for (int t = 0; t < whole; t += kN) {
    hn::StoreU(hn::Mul(hn::LoadU(d, s + t), inverse), d, s + t);
  }
  hn::Store(hn::Mul(hn::Load(d, tail), inverse), d, tail);
  std::copy_n(tail, left, s + whole);
  if (n > n_visible) std::fill(s + n_visible, s + n, 0.0F);
}

void dense_column_sums(const float* p, std::ptrdiff_t stride, int n_rows, int n, float power,
                       float* sums) noexcept {
  const DF d;
  std::fill_n(sums, n, 0.0F);
  for (int i = 0; i < n_rows; ++i) {
    const float* row = p + i * stride;
    int t = 0;
    for (; power == 1.0F && t + kN <= n; t += kN) {
      hn::StoreU(hn::Add(hn::LoadU(d, sums + t), hn::LoadU(d, row + t)), d, sums + t);
    }
    for (; t < n; ++t) sums[t] += power == 1.0F ? row[t] : std::pow(row[t], power);
  }
}

const TargetDenseOps* get_dense_ops() {
  static constexpr TargetDenseOps ops = {
      {dense_restore, dense_scores, dense_values, dense_softmax_row, dense_column_sums},
      HWY_TARGET};
  return &ops;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(get_dense_ops);

const DenseOps* dense_ops_for_target(std::int64_t hwy_target) {
  const TargetDenseOps* ops =
      ops_for_target(hwy_target, [] { return HWY_DYNAMIC_DISPATCH(get_dense_ops)(); });
  return ops != nullptr ? &ops->ops : nullptr;
}

}  // namespace qevict
#endif  // HWY_ONCE
