// The materialised attention's decode mode: rebuild, scores, softmax, P V and column sums, merge.
#include <algorithm>
#include <thread>

#include "attention/materialised_attention.h"
#include "base/math.h"
#include "kernels/dense.h"

namespace qevict {
namespace {

enum Phase { kRebuild, kScores, kSoftmax, kProducts, kFinish, kEnd };

constexpr int kRecentRows = 128;  // sinks and local tokens that an item copies
constexpr int kChunkRows = 1024;  // keys that an item multiplies with

}  // namespace

MaterialisedAttention::Phases MaterialisedAttention::phases(int layer) const {
  const LayerCache& cache = cache_.layer(layer);
  Phases p{};
  p.full_groups = static_cast<int>(cache.full().groups().size());
  p.quantized_groups = accessible(cache) ? static_cast<int>(cache.quantized().groups().size()) : 0;
  p.n_rows = window_tokens(cache) + cache.recent().n_tokens();
  p.chunks = ceil_div(p.n_rows, kChunkRows);
  const int heads = geometry_.n_kv_heads;
  const int counts[kEnd] = {
      p.full_groups + p.quantized_groups + ceil_div(cache.recent().n_tokens(), kRecentRows),
      heads * p.chunks, geometry_.n_heads, heads * p.chunks + (want_mass_ ? p.chunks : 0), 1};
  for (int i = 0; i < kEnd; ++i) p.begin[i + 1] = p.begin[i] + counts[i];
  return p;
}

void MaterialisedAttention::begin_step() {
  const Geometry& g = geometry_;
  reserve_restore();
  // Bounds that change at routing events only: the local zone's capacity, not its tokens.
  std::size_t rows = 0;
  for (int i = 0; i < cache_.n_layers(); ++i) {
    const LayerCache& layer = cache_.layer(i);
    rows = std::max<std::size_t>(rows, window_tokens(layer) + layer.recent().ref().capacity);
  }
  stride_ = (rows + kLanes - 1) / kLanes * kLanes;
  dense_k_.reserve(g.n_kv_heads * rows * g.head_dim);
  dense_v_.reserve(g.n_kv_heads * rows * g.head_dim);
  scores_.reserve(g.n_heads * stride_);
  column_sums_.reserve(stride_);
  partial_.reserve((rows + kChunkRows - 1) / kChunkRows * g.n_heads * g.head_dim);
  products_stride_ = dense_scratch_bytes(g.group_size(), g.head_dim);
  products_stride_ = (products_stride_ + 63) / 64 * 64;
  products_.reserve(products_stride_ * n_threads_);
}

void MaterialisedAttention::attend_step(int layer, const float* q, float* out, int ith,
                                        Counters counters) noexcept {
  const Phases p = phases(layer);
  int phase = kRebuild;
  for (int i = counters.claimed.fetch_add(1); i < p.begin[kEnd];
       i = counters.claimed.fetch_add(1)) {
    while (i >= p.begin[phase + 1]) ++phase;
    // Items are claimed in order, so those of the phase before are all being worked on: no
    // deadlock.
    while (counters.finished.load(std::memory_order_acquire) < p.begin[phase]) {
      std::this_thread::yield();
    }
    run_step_item(layer, p, phase, i - p.begin[phase], q, out, ith);
    counters.finished.fetch_add(1, std::memory_order_acq_rel);
  }
}

void MaterialisedAttention::run_step_item(int layer, const Phases& p, int phase, int item,
                                          const float* q, float* out, int ith) noexcept {
  switch (phase) {
    case kRebuild:
      rebuild(layer, p, item, ith);
      break;
    case kScores:
      score_chunk(p, item, q, ith);
      break;
    case kSoftmax:
      kernels_.dense->softmax_row(scores_.data() + stride_ * item, p.n_rows, p.n_rows);
      break;
    case kProducts:
      multiply_chunk(p, item, ith);
      break;
    case kFinish:
      finish_step(layer, p, out);
      break;
  }
}

void MaterialisedAttention::rebuild(int layer, const Phases& p, int item, int ith) noexcept {
  const Geometry& g = geometry_;
  const LayerCache& cache = cache_.layer(layer);
  const int sinks = cache.recent().n_sinks();
  if (item < p.full_groups) return restore_full(cache, item, sinks, p.n_rows, ith);
  item -= p.full_groups;
  if (item < p.quantized_groups) return restore_quantized(cache, item, sinks, p.n_rows, ith);
  item -= p.quantized_groups;
  const int local_shift = p.n_rows - cache.recent().n_tokens();  // the windows stand in between
  const int end = std::min((item + 1) * kRecentRows, cache.recent().n_tokens());
  for (int h = 0; h < g.n_kv_heads; ++h) {
    for (int r = item * kRecentRows; r < end; ++r) {
      const int to = r < sinks ? r : r + local_shift;
      const std::size_t at = (static_cast<std::size_t>(h) * p.n_rows + to) * g.head_dim;
      cache.recent().read(r, h, dense_k_.data() + at, dense_v_.data() + at);
    }
  }
}

void MaterialisedAttention::score_chunk(const Phases& p, int item, const float* q,
                                        int ith) noexcept {
  const Geometry& g = geometry_;
  const int head = item / p.chunks;
  const int first = item % p.chunks * kChunkRows;
  DenseScoresParams s;
  s.q = q + static_cast<std::size_t>(head) * g.group_size() * g.head_dim;
  s.q_stride = g.head_dim;
  s.n_q = g.group_size();
  s.k = dense_k_.data() + (static_cast<std::size_t>(head) * p.n_rows + first) * g.head_dim;
  s.n_keys = std::min(kChunkRows, p.n_rows - first);
  s.head_dim = g.head_dim;
  s.s = scores_.data() + stride_ * head * g.group_size() + first;
  s.s_stride = static_cast<std::ptrdiff_t>(stride_);
  s.scratch = products_.data() + products_stride_ * ith;
  kernels_.dense->scores(s);
}

void MaterialisedAttention::multiply_chunk(const Phases& p, int item, int ith) noexcept {
  const Geometry& g = geometry_;
  const int head = item / p.chunks;  // n_kv_heads: the column sums
  const int chunk = item % p.chunks;
  const int first = chunk * kChunkRows;
  const int n = std::min(kChunkRows, p.n_rows - first);
  if (head == g.n_kv_heads) {
    kernels_.dense->column_sums(scores_.data() + first, static_cast<std::ptrdiff_t>(stride_),
                                g.n_heads, n, power_, column_sums_.data() + first);
    return;
  }
  DenseValuesParams v;
  v.p = scores_.data() + stride_ * head * g.group_size() + first;
  v.p_stride = static_cast<std::ptrdiff_t>(stride_);
  v.n_q = g.group_size();
  v.v = dense_v_.data() + (static_cast<std::size_t>(head) * p.n_rows + first) * g.head_dim;
  v.n_keys = n;
  v.head_dim = g.head_dim;
  v.out = partial_.data() +
          (static_cast<std::size_t>(chunk) * g.n_heads + head * g.group_size()) * g.head_dim;
  v.out_stride = g.head_dim;
  v.scratch = products_.data() + products_stride_ * ith;
  kernels_.dense->values(v);
}

void MaterialisedAttention::finish_step(int layer, const Phases& p, float* out) noexcept {
  const Geometry& g = geometry_;
  const int width = g.n_heads * g.head_dim;
  std::copy_n(partial_.data(), width, out);
  for (int chunk = 1; chunk < p.chunks; ++chunk) {
    const float* part = partial_.data() + static_cast<std::size_t>(chunk) * width;
    for (int i = 0; i < width; ++i) out[i] += part[i];
  }
  if (!want_mass_) return;

  LayerCache& cache = cache_.layer(layer);
  const std::span<double> full = cache.full_mass();
  const std::span<double> quantized = cache.quantized_mass();
  const std::span<double> local = cache.local_mass();
  cache.decay_mass(decay_);
  const double mean = 1.0 / g.n_heads;
  const float* sums = column_sums_.data() + cache.recent().n_sinks();
  const auto window_sum = [&](int rank) {
    double sum = 0.0;
    for (int j = 0; j < g.window; ++j) sum += sums[rank * g.window + j];
    return mean * sum;
  };
  for (std::size_t i = 0; i < full.size(); ++i) full[i] += window_sum(full_rank_[i]);
  if (accessible(cache)) {
    for (std::size_t i = 0; i < quantized.size(); ++i) {
      quantized[i] += window_sum(quantized_rank_[i]);
    }
  }
  sums += window_tokens(cache);
  for (int t = 0; t < cache.recent().n_local_tokens(); ++t) local[t / g.window] += mean * sums[t];
}

}  // namespace qevict
