// Blocked fp32 prompt attention (Highway): one pass over the keys, window masses included.
//
// All query rows of a tile (tokens x heads of the group) meet a key panel while it is in the cache.
// Scores are kept in powers of two (q carries scale * log2 e). A row's reference maximum m moves
// only when a score passes it by more than 2^8; a window's sum is stored with the m of its moment
// and brought to the final (m, l) at the end, so no second pass over the keys is needed.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prefill_simd.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/prefill_micro-inl.h"
#include "kernels/prefill_pack-inl.h"
#include "kernels/prefill_plan.h"
#include "kernels/prefill_quant-inl.h"
#include "kernels/tables.h"
#include "kernels/target_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

const PrefillOps* get_prefill_ops() { return nullptr; }

#else

// One call: its parameters, its shape and its scratch.
class Tile {
 public:
  // products: of matrix tiles; null: fp32 in vector registers.
  Tile(const PrefillParams& p, const PanelProducts* products)
      : p_(p),
        products_(products),
        g_(*p.geometry),
        plan_(p),
        group_size_(g_.group_size()),
        dim_(g_.head_dim),
        n_tokens_(p.q_end - p.q_begin),
        n_rows_(n_tokens_ * group_size_),
        n_blocks_((n_rows_ + kRowBlock - 1) / kRowBlock) {
    divide_prefill_scratch(p.scratch, g_, n_tokens_, p.n_full, p.n_quantized, plan_.visible_rows(),
                           &scratch_);
    keys_ = {scratch_.k, dim_};
    values_ = value_panel(scratch_.v, dim_);
    // With a power above 1 sums relative to an outdated maximum could overflow.
    lazy_range_ = p.mass != nullptr && p.power > 1.0F ? 0.0F : kLazyRange;
  }

  void run() {
    alignas(64) std::uint8_t tile_state[64];
    if (products_ != nullptr) products_->begin(tile_state);
    prepare();
    PrefillPanel panel;
    while (plan_.next(&panel)) {
      pack(panel);
      attend(panel);
    }
    if (products_ != nullptr) products_->end(tile_state);
    write_output();
    if (p_.mass != nullptr) write_mass();
  }

 private:
  // Rows that a token of the tile (0 ..) sees.
  int row_limit(int token) const { return p_.q_row0 + p_.q_begin + token + 1; }
  // The first token of the tile that sees any key of the panel.
  int first_token(const PrefillPanel& panel) const {
    if (!panel.from_rows()) return 0;
    return std::max(0, panel.min_row() + 1 - row_limit(0));
  }
  float* window_sums(const PrefillPanel& panel, int group, int row) const {
    const std::ptrdiff_t slot =
        static_cast<std::ptrdiff_t>(panel.index) * plan_.groups_per_panel() + group;
    return scratch_.window + (slot * scratch_.rows + row) * kLanes;
  }
  float* window_maxima(const PrefillPanel& panel) const {
    return scratch_.m_window + static_cast<std::ptrdiff_t>(panel.index) * scratch_.rows;
  }

  void prepare() {
    const float scale = p_.scale * 1.4426950408889634F;
    for (int row = 0; row < n_blocks_ * kRowBlock; ++row) {
      float* out = scratch_.q + static_cast<std::ptrdiff_t>(row / kRowBlock) * dim_ * kRowBlock +
                   row % kRowBlock;
      const float* q = row < n_rows_ ? query(p_.q, row) : nullptr;
      for (int c = 0; c < dim_; ++c) out[c * kRowBlock] = q == nullptr ? 0.0F : q[c] * scale;
      scratch_.m[row] = -std::numeric_limits<float>::infinity();
    }
    for (int row = 0; products_ != nullptr && row < scratch_.rows; ++row) {
      const float* q = row < n_rows_ ? query(p_.q, row) : nullptr;
      products_->pack_query(scratch_.products, row, q, scale, dim_);
    }
    std::fill_n(scratch_.o, static_cast<std::ptrdiff_t>(scratch_.rows) * scratch_.d_pad, 0.0F);
    std::fill_n(scratch_.l, static_cast<std::ptrdiff_t>(scratch_.rows) * kLanes, 0.0F);
    std::fill_n(scratch_.zero_row, dim_, fp16_t{0});
    if (p_.n_quantized > 0) prepare_turns();
  }

  // cos, sin of j * inv_freq by repeated rotation in double: 32 steps lose nothing in fp32.
  void prepare_turns() {
    const int pairs = dim_ / 2;
    for (int pair = 0; pair < pairs; ++pair) {
      const double cos1 = std::cos(p_.rope->inv_freq[pair]);
      const double sin1 = std::sin(p_.rope->inv_freq[pair]);
      double c = 1.0;
      double s = 0.0;
      for (int j = 0; j < g_.window; ++j) {
        scratch_.turn[j * dim_ + pair] = static_cast<float>(c);
        scratch_.turn[j * dim_ + pairs + pair] = static_cast<float>(s);
        const double next = c * cos1 - s * sin1;
        s = s * cos1 + c * sin1;
        c = next;
      }
    }
  }

  template <class T>
  T* query(T* base, int row) const {
    const int token = p_.q_begin + row / group_size_;
    const int head = p_.kv_head * group_size_ + row % group_size_;
    return base + token * prefill_stride(p_) + std::ptrdiff_t{head} * dim_;
  }

  void pack(const PrefillPanel& panel) {
    switch (panel.kind) {
      case PanelKind::Full:
        pack_full(p_, panel, keys_, values_);
        break;
      case PanelKind::Quantized:
        pack_quantized(p_, panel, scratch_.turn, keys_, values_);
        break;
      case PanelKind::Sinks:
        pack_rows(p_, panel, plan_.sink_rows(), scratch_.zero_row, keys_, values_);
        break;
      case PanelKind::Region:
        pack_rows(p_, panel, plan_.visible_rows(), scratch_.zero_row, keys_, values_);
        break;
    }
    if (products_ != nullptr) {
      products_->pack_panel(scratch_.products, {keys_.data, values_.data, kBlockFloats,
                                                values_.width, dim_, panel.n_vectors, panel.lanes});
    }
  }

  void attend(const PrefillPanel& panel) {
    constexpr int kChunkBlocks = kChunkRows / kRowBlock;
    const int first = first_token(panel) * group_size_ / kRowBlock;
    for (int begin = first; begin < n_blocks_; begin += kChunkBlocks) {
      const int end = std::min(n_blocks_, begin + kChunkBlocks);
      score(panel, begin, end);
      softmax(panel, begin, end);
      accumulate(panel, begin, end);
    }
  }

  float* scores(int row, int begin) const {
    return scratch_.s + static_cast<std::ptrdiff_t>(row - begin * kRowBlock) * kPanelTokens;
  }

  // Of a chunk of blocks; the products round up to whole tiles of padding rows.
  int rows_of(int begin, int end) const {
    return std::min(end * kRowBlock, n_rows_) - begin * kRowBlock;
  }

  void score(const PrefillPanel& panel, int begin, int end) const {
    if (products_ != nullptr) {
      products_->score(scratch_.products, begin * kRowBlock, rows_of(begin, end), panel.n_vectors,
                       dim_, scratch_.s);
      return;
    }
    const int n_hw = panel.n_vectors * kSub;
    for (int v = 0; v < n_hw; v += kVecBlock) {
      const float* k = keys_.at(v * kN, 0);
      for (int b = begin; b < end; ++b) {
        const float* q = scratch_.q + static_cast<std::ptrdiff_t>(b) * dim_ * kRowBlock;
        float* s = scores(b * kRowBlock, begin) + v * kN;
        if (n_hw - v >= kVecBlock) {
          multiply_keys<kVecBlock>(q, k, dim_, s);
        } else {
          multiply_keys<1>(q, k, dim_, s);
        }
      }
    }
  }

  void softmax(const PrefillPanel& panel, int begin, int end) const {
    const bool want_mass = p_.mass != nullptr && panel.kind != PanelKind::Sinks;
    const std::ptrdiff_t group_stride = static_cast<std::ptrdiff_t>(scratch_.rows) * kLanes;
    float* m_window = want_mass ? window_maxima(panel) : nullptr;
    const int last = std::min(end * kRowBlock, n_rows_);
    for (int row = begin * kRowBlock; row < last; ++row) {
      float* s = scores(row, begin);
      int limit = row_limit(row / group_size_);
      if (panel.kind == PanelKind::Sinks) limit = std::min(limit, plan_.sink_rows());
      const bool all_seen = panel.from_rows() ? panel.max_row() < limit : panel.all_valid();
      if (!all_seen) mask_scores(panel, limit, s);
      const RowState state = {scratch_.m + row,
                              scratch_.l + static_cast<std::ptrdiff_t>(row) * kLanes,
                              scratch_.o + static_cast<std::ptrdiff_t>(row) * scratch_.d_pad};
      float* window = want_mass ? window_sums(panel, 0, row) : nullptr;
      if (want_mass && p_.power != 1.0F) {
        softmax_row<true>(panel, lazy_range_, p_.power, scratch_.d_pad, s, state, window,
                          group_stride);
      } else {
        softmax_row<false>(panel, lazy_range_, 1.0F, scratch_.d_pad, s, state, window,
                           group_stride);
      }
      if (want_mass) m_window[row] = *state.m;
    }
  }

  void accumulate(const PrefillPanel& panel, int begin, int end) const {
    if (products_ != nullptr) {
      products_->accumulate(
          scratch_.products, rows_of(begin, end), panel.n_vectors, panel.lanes, dim_, scratch_.s,
          scratch_.o + static_cast<std::ptrdiff_t>(begin) * kRowBlock * scratch_.d_pad,
          scratch_.d_pad);
      return;
    }
    for (int block = 0; block < values_.n_blocks; ++block) {
      const int c = block * values_.width;
      const float* v = values_.at(0, c);
      const int n_vecs = std::min(values_.width, (dim_ + kN - 1) / kN * kN - c) / kN;
      for (int b = begin; b < end; ++b) {
        const float* s = scores(b * kRowBlock, begin);
        float* o = scratch_.o + static_cast<std::ptrdiff_t>(b) * kRowBlock * scratch_.d_pad + c;
        const auto multiply = n_vecs == kVecBlock ? multiply_values<kVecBlock> : multiply_values<1>;
        multiply(s, v, values_.width, panel.n_vectors, panel.lanes, o, scratch_.d_pad);
      }
    }
  }

  // Divides by l; leaves 1/l (power 1) or log2 l in l[row][0] for the masses.
  void write_output() {
    const DF d;
    for (int row = 0; row < n_rows_; ++row) {
      float* l = scratch_.l + static_cast<std::ptrdiff_t>(row) * kLanes;
      VF sum = hn::Load(d, l);
      for (int i = kN; i < kLanes; i += kN) sum = hn::Add(sum, hn::Load(d, l + i));
      const float total = hn::GetLane(hn::SumOfLanes(d, sum));
      const float inverse = 1.0F / total;
      const float* o = scratch_.o + static_cast<std::ptrdiff_t>(row) * scratch_.d_pad;
      float* out = query(p_.out, row);
      for (int c = 0; c < dim_; ++c) out[c] = o[c] * inverse;
      l[0] = p_.power == 1.0F ? inverse : std::log2(total);
    }
  }

  // What a row's window sums of this panel are multiplied by, in place of their maxima.
  void finish_factors(float* m_window, int first_row) const {
    const DF d;
    const VF power = hn::Set(d, p_.power);
    alignas(64) float l[kLanes];
    // Whole vectors: rows beyond the tile are padding, rows before first_row are not used.
    for (int row = first_row / kN * kN; row < n_rows_; row += kN) {
      for (int i = 0; i < kN; ++i) {
        l[i] = row + i < n_rows_ ? scratch_.l[static_cast<std::ptrdiff_t>(row + i) * kLanes] : 0.0F;
      }
      const VF moved = hn::Sub(hn::Load(d, m_window + row), hn::Load(d, scratch_.m + row));
      const VF end = hn::Load(d, l);
      const VF factor = p_.power == 1.0F ? hn::Mul(exp2_nonpositive(moved), end)
                                         : exp2_nonpositive(hn::Mul(hn::Sub(moved, end), power));
      hn::Store(factor, d, m_window + row);
    }
  }

  // Sums a group's windows over the tokens of each head. `add`: a later part of a split group.
  void add_masses(const PrefillPanel& panel, int group, int first, int n, bool add,
                  float* out) const {
    const DF d;
    const float* factor = window_maxima(panel);
    alignas(64) float lanes[kLanes];
    for (int h = 0; h < group_size_; ++h) {
      for (int i = 0; i < kLanes; i += kN) {
        VF sum = hn::Zero(d);
        for (int t = first; t < n_tokens_; ++t) {
          const int row = t * group_size_ + h;
          const VF part = hn::Load(d, window_sums(panel, group, row) + i);
          sum = hn::MulAdd(part, hn::Set(d, factor[row]), sum);
        }
        hn::Store(sum, d, lanes + i);
      }
      float* to = out + h * p_.mass_stride;
      for (int i = 0; i < n; ++i) to[i] = add ? to[i] + lanes[i] : lanes[i];
    }
  }

  void write_mass() {
    plan_.rewind();
    PrefillPanel panel;
    while (plan_.next(&panel)) {
      if (panel.kind == PanelKind::Sinks) continue;
      const int first = first_token(panel);
      finish_factors(window_maxima(panel), first * group_size_);
      int first_group = panel.group;
      if (panel.kind != PanelKind::Full) first_group += p_.n_full;
      if (panel.kind == PanelKind::Region) first_group += p_.n_quantized;
      for (int i = 0; i < panel.n_groups; ++i) {
        int n = kLanes;
        if (panel.kind == PanelKind::Region) {
          n = std::min(kLanes, plan_.region_windows() - (panel.group + i) * kLanes);
        }
        add_masses(panel, i, first, n, panel.j0 > 0,
                   p_.mass + static_cast<std::ptrdiff_t>(first_group + i) * kLanes);
      }
    }
  }

  const PrefillParams& p_;
  const PanelProducts* products_;
  const Geometry& g_;
  PrefillPlan plan_;
  int group_size_;
  int dim_;
  int n_tokens_;
  int n_rows_;    // query rows: token-major, the group's heads of a token follow each other
  int n_blocks_;  // of kRowBlock rows, the last one padded
  float lazy_range_ = kLazyRange;
  PrefillScratch scratch_{};
  KeyPanel keys_{};
  ValuePanel values_{};
};

void prefill_tile(const PrefillParams& p) noexcept { Tile(p, nullptr).run(); }
void prefill_tile_amx(const PrefillParams& p) noexcept { Tile(p, amx_products()).run(); }
void prefill_tile_emulated(const PrefillParams& p) noexcept { Tile(p, &emulated_products()).run(); }

const PrefillOps* get_prefill_ops() {
  static constexpr PrefillOps ops = {prefill_tile, prefill_tile_amx, prefill_tile_emulated,
                                     HWY_TARGET};
  return &ops;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(get_prefill_ops);

const PrefillOps* prefill_ops_for_target(std::int64_t hwy_target) {
  return ops_for_target(hwy_target, [] { return HWY_DYNAMIC_DISPATCH(get_prefill_ops)(); });
}

}  // namespace qevict
#endif
