#include "attention/codec_attention.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"

namespace qevict {

CodecAttention::CodecAttention(KvCache& cache, const KernelTable& kernels, int n_threads)
    : cache_(cache), kernels_(kernels), geometry_(cache.geometry()), n_threads_(n_threads) {}

void CodecAttention::begin_prompt(int n_new) {
  n_prefix_ = cache_.codec(0)->n_tokens();
  probe_rows_ = cache_.codec(0)->probe_rows(n_new);
  probes_of_.clear();
  if (!probe_rows_.empty()) probes_of_.resize(static_cast<std::size_t>(n_new));
  for (std::size_t i = 0; i < probe_rows_.size(); ++i) {
    probes_of_[probe_rows_[i]].push_back(static_cast<int>(i));
  }
  probe_q_.resize_exactly(probe_rows_.size() * geometry_.n_heads * geometry_.head_dim);
  if (n_prefix_ > 0)
    chunks_.reserve(std::size_t{2} * n_threads_ * kCodecChunk * geometry_.head_dim);
}

void CodecAttention::load_prefix(int layer, int capacity, fp16_t* k, fp16_t* v) {
  const int d = geometry_.head_dim;
  const RowCodec& codec = *cache_.codec(layer);
  const ChunkRows chunk = scratch_of(0);
  for (int h = 0; h < geometry_.n_kv_heads; ++h) {
    for (int first = 0; first < n_prefix_; first += kCodecChunk) {
      const int n = std::min(kCodecChunk, n_prefix_ - first);
      codec.load(h, first, n, chunk);
      const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(h) * capacity + first) * d;
      std::copy_n(chunk.v, n * d, v + at);
      for (int r = 0; r < n; ++r) {
        for (int c = 0; c < d; ++c) {
          k[at + r * d + c] = chunk.k[static_cast<std::ptrdiff_t>(c) * chunk.capacity + r];
        }
      }
    }
  }
}

void CodecAttention::keep_probes(int t, const float* q) noexcept {
  if (probes_of_.empty()) return;
  const int width = geometry_.n_heads * geometry_.head_dim;
  for (const int i : probes_of_[t]) {
    std::copy_n(q, width, probe_q_.data() + static_cast<std::ptrdiff_t>(i) * width);
  }
}

void CodecAttention::end_prompt() {
  probe_rows_ = {};
  probes_of_ = {};
  probe_q_.release();
}

void CodecAttention::begin_step() {
  for (int i = 0; i < cache_.n_layers(); ++i) cache_.codec(i)->reserve_row();
  const Geometry& g = geometry_;
  const std::size_t chunks = ceil_div(cache_.n_tokens() + 1, kCodecChunk);
  const std::size_t heads = chunks * g.n_heads;
  chunks_.reserve(std::size_t{2} * n_threads_ * kCodecChunk * g.head_dim);
  partial_o_.reserve(heads * g.head_dim);
  partial_m_.reserve(heads);
  partial_l_.reserve(heads);
  if (!cache_.codec(0)->uses_mass()) return;
  token_sum_.reserve(heads * kCodecChunk);
  token_max_.reserve(heads);
  mass_.reserve(static_cast<std::size_t>(g.n_kv_heads) * (cache_.n_tokens() + 1));
}

ChunkRows CodecAttention::scratch_of(int thread) const {
  const std::ptrdiff_t elements = std::ptrdiff_t{kCodecChunk} * geometry_.head_dim;
  if (chunks_.data() == nullptr) return {nullptr, nullptr, kCodecChunk};  // it reads its own rows
  fp16_t* k = chunks_.data() + 2 * elements * thread;
  return {k, k + elements, kCodecChunk};
}

void CodecAttention::attend_step(int layer, const float* q, float* out, int ith,
                                 std::atomic<int>& claimed, std::atomic<int>& finished) noexcept {
  RowCodec& codec = *cache_.codec(layer);
  const int n_chunks = ceil_div(codec.n_tokens(), kCodecChunk);
  const int items = n_chunks * geometry_.n_kv_heads;
  const bool mass = codec.wants_mass();
  for (int i = claimed.fetch_add(1); i < items; i = claimed.fetch_add(1)) {
    run_item(codec, i, q, mass, ith);
    if (finished.fetch_add(1, std::memory_order_acq_rel) == items - 1) {
      finish_step(codec, n_chunks, mass, out);
    }
  }
}

void CodecAttention::run_item(const RowCodec& codec, int item, const float* q, bool mass,
                              int ith) noexcept {
  const Geometry& g = geometry_;
  const int group = g.group_size();
  const int chunk = item / g.n_kv_heads;
  const int kv_head = item % g.n_kv_heads;
  const int n = std::min(kCodecChunk, codec.n_tokens() - chunk * kCodecChunk);
  const ChunkRows rows = scratch_of(ith);
  codec.load(kv_head, chunk * kCodecChunk, n, rows);

  const std::size_t head = static_cast<std::size_t>(kv_head) * group;
  const std::size_t at = static_cast<std::size_t>(chunk) * g.n_heads + head;
  const SoftmaxState state{partial_o_.data() + at * g.head_dim, partial_m_.data() + at,
                           partial_l_.data() + at};
  softmax_reset(state, group, g.head_dim);
  AttendRecentParams p;
  p.geometry = &geometry_;
  p.kv_head = 0;  // the scratch holds one head
  p.q = q + head * g.head_dim;
  p.recent = {rows.k, rows.v, rows.capacity, n};
  p.state = state;
  if (mass) {
    p.token_sum = token_sum_.data() + at * kCodecChunk;
    p.token_max = token_max_.data() + at;
  }
  kernels_.attend_recent(p);
}

void CodecAttention::finish_step(RowCodec& codec, int n_chunks, bool mass, float* out) noexcept {
  const Geometry& g = geometry_;
  const int d = g.head_dim;
  const SoftmaxState total{partial_o_.data(), partial_m_.data(), partial_l_.data()};
  for (int i = 1; i < n_chunks; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * g.n_heads;
    softmax_merge(total,
                  {partial_o_.data() + at * d, partial_m_.data() + at, partial_l_.data() + at},
                  g.n_heads, d);
  }
  for (int h = 0; h < g.n_heads; ++h) {
    const float inverse = 1.0F / total.l[h];
    for (int c = 0; c < d; ++c) out[h * d + c] = total.o[h * d + c] * inverse;
  }
  if (!mass) return;
  const int n = codec.n_tokens();
  std::fill_n(mass_.data(), static_cast<std::size_t>(g.n_kv_heads) * n, 0.0F);
  for (int i = 0; i < n_chunks; ++i) {
    const int first = i * kCodecChunk;
    for (int h = 0; h < g.n_heads; ++h) {
      const std::size_t at = static_cast<std::size_t>(i) * g.n_heads + h;
      const float factor = std::exp(token_max_.data()[at] - total.m[h]) / total.l[h];
      const float* sum = token_sum_.data() + at * kCodecChunk;
      float* to = mass_.data() + static_cast<std::ptrdiff_t>(h / g.group_size()) * n + first;
      for (int t = 0; t < std::min(kCodecChunk, n - first); ++t) to[t] += sum[t] * factor;
    }
  }
  codec.add_mass(mass_.data());
}

std::size_t CodecAttention::workspace_bytes() const {
  return probe_q_.bytes() + chunks_.bytes() + partial_o_.bytes() + partial_m_.bytes() +
         partial_l_.bytes() + token_sum_.bytes() + token_max_.bytes() + mass_.bytes();
}

}  // namespace qevict
