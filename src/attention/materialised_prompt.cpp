// The materialised attention's prompt mode: one query head's scores over all keys of a block at a
// time.
#include <algorithm>
#include <cmath>

#include "attention/materialised_attention.h"
#include "base/math.h"
#include "kernels/dense.h"

namespace qevict {

void MaterialisedAttention::begin_layer(int layer, int capacity, int max_block) {
  const Geometry& g = geometry_;
  const LayerCache& cache = cache_.layer(layer);
  reserve_restore();
  prefix_tokens_ = window_tokens(cache);
  dense_k_.reserve(static_cast<std::size_t>(g.n_kv_heads) * prefix_tokens_ * g.head_dim);
  dense_v_.reserve(static_cast<std::size_t>(g.n_kv_heads) * prefix_tokens_ * g.head_dim);
  order_windows(layer);
  for (std::size_t i = 0; i < cache.full().groups().size(); ++i) {
    restore_full(cache, static_cast<int>(i), 0, prefix_tokens_, 0);
  }
  for (std::size_t i = 0; accessible(cache) && i < cache.quantized().groups().size(); ++i) {
    restore_quantized(cache, static_cast<int>(i), 0, prefix_tokens_, 0);
  }
  stride_ = static_cast<std::size_t>(ceil_div(prefix_tokens_ + capacity, kLanes)) * kLanes;
  thread_scores_ = stride_ * max_block;
  scores_.reserve(thread_scores_ * n_threads_);
  if (want_mass_) column_sums_.reserve(stride_ * g.n_heads);
  products_stride_ = (dense_scratch_bytes(max_block, g.head_dim) + 63) / 64 * 64;
  products_.reserve(products_stride_ * n_threads_);
}

void MaterialisedAttention::run_prompt_head(const PromptBlock& block, int head, float* out,
                                            int ith) noexcept {
  const Geometry& g = geometry_;
  const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(g.n_heads) * g.head_dim;
  const int kv_head = head / g.group_size();
  const std::size_t rows_at = static_cast<std::size_t>(kv_head) * block.capacity * g.head_dim;
  const std::size_t dense_at = static_cast<std::size_t>(kv_head) * prefix_tokens_ * g.head_dim;
  float* scores = scores_.data() + thread_scores_ * ith;
  void* scratch = products_.data() + products_stride_ * ith;
  // In position order: sinks, windows of the prefix, rows. Without a prefix one range of rows.
  struct Range {
    const fp16_t *k, *v;
    int n;
  };
  const int n_rows = block.row0 + block.n_tokens;
  const int sinks = prefix_tokens_ > 0 ? std::min(block.n_sink_rows, n_rows) : 0;
  const fp16_t* k_rows = block.k_rows + rows_at;
  const fp16_t* v_rows = block.v_rows + rows_at;
  const std::ptrdiff_t after_sinks = static_cast<std::ptrdiff_t>(sinks) * g.head_dim;
  const Range ranges[] = {{k_rows, v_rows, sinks},
                          {dense_k_.data() + dense_at, dense_v_.data() + dense_at, prefix_tokens_},
                          {k_rows + after_sinks, v_rows + after_sinks, n_rows - sinks}};
  const auto stride = static_cast<std::ptrdiff_t>(stride_);

  DenseScoresParams s;
  s.q = block.q + static_cast<std::ptrdiff_t>(head) * g.head_dim;
  s.q_stride = width;
  s.n_q = block.n_tokens;
  s.scale = 1.0F / std::sqrt(static_cast<float>(g.head_dim));
  s.head_dim = g.head_dim;
  s.s_stride = stride;
  s.scratch = scratch;
  int column = 0;
  for (const Range& range : ranges) {
    s.k = range.k;
    s.n_keys = range.n;
    s.s = scores + column;
    if (range.n > 0) kernels_.dense->scores(s);
    column += range.n;
  }
  for (int t = 0; t < block.n_tokens; ++t) {
    // Token t sees every row up to its own.
    kernels_.dense->softmax_row(scores + t * stride, column - block.n_tokens + t + 1, column);
  }
  DenseValuesParams v;
  v.p_stride = stride;
  v.n_q = block.n_tokens;
  v.head_dim = g.head_dim;
  v.out = out + static_cast<std::ptrdiff_t>(head) * g.head_dim;
  v.out_stride = width;
  v.scratch = scratch;
  column = 0;
  for (const Range& range : ranges) {
    v.p = scores + column;
    v.v = range.v;
    v.n_keys = range.n;
    if (range.n > 0) {
      kernels_.dense->values(v);
      v.add = true;
    }
    column += range.n;
  }
  if (want_mass_) {
    kernels_.dense->column_sums(scores + block.mass_from * stride, stride,
                                block.n_tokens - block.mass_from, column, power_,
                                column_sums_.data() + stride_ * head);
  }
}

void MaterialisedAttention::add_prompt_mass(int layer, const PromptBlock& block,
                                            std::vector<double>& full,
                                            std::vector<double>& quantized,
                                            std::vector<double>& region) noexcept {
  const Geometry& g = geometry_;
  const LayerCache& cache = cache_.layer(layer);
  const double mean = 1.0 / g.n_heads;
  const int n_rows = block.row0 + block.n_tokens;
  const int sinks = std::min(block.n_sink_rows, n_rows);
  for (int head = 0; head < g.n_heads; ++head) {
    const float* sums = column_sums_.data() + stride_ * head + sinks;
    const auto window_sum = [&](int rank) {
      double sum = 0.0;
      for (int j = 0; j < g.window; ++j) sum += sums[rank * g.window + j];
      return mean * sum;
    };
    for (std::size_t i = 0; i < full.size(); ++i) full[i] += window_sum(full_rank_[i]);
    for (std::size_t i = 0; accessible(cache) && i < quantized.size(); ++i) {
      quantized[i] += window_sum(quantized_rank_[i]);
    }
    sums += prefix_tokens_;
    for (int r = sinks; r < n_rows; ++r) {
      region[(r - sinks) / g.window] += mean * sums[r - sinks];
    }
  }
}

void MaterialisedAttention::end_prompt() {
  dense_k_.release();
  dense_v_.release();
  scores_.release();
  column_sums_.release();
  products_.release();
  restore_.release();
}

}  // namespace qevict
