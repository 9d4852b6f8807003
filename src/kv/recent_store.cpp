#include "kv/recent_store.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace qevict {
namespace {
constexpr int kRowStep = 16;  // RecentRef: capacity is a multiple of 16
}

RecentStore::RecentStore(const Geometry& geometry, int n_sink, int max_local,
                         std::int64_t most_tokens)
    : geometry_(geometry),
      n_sink_(n_sink),
      max_tokens_(static_cast<int>(std::min(std::int64_t{n_sink} + max_local, most_tokens))),
      capacity_((max_tokens_ + kRowStep - 1) / kRowStep * kRowStep),
      token_bytes_(geometry.token_bytes()) {
  const std::size_t elements = static_cast<std::size_t>(geometry.n_kv_heads) * geometry.head_dim *
                               static_cast<std::size_t>(capacity_);
  k_.resize(elements);
  v_.resize(elements);
}

std::size_t RecentStore::reserved_bytes() const {
  return (k_.size() + v_.size()) * sizeof(fp16_t) -
         token_bytes_ * static_cast<std::size_t>(n_tokens_);
}

int RecentStore::push_row() {
  QE_CHECK(n_tokens_ < max_tokens_);
  if (n_sinks_ < n_sink_) {
    QE_CHECK(n_sinks_ == n_tokens_);  // sinks are the first positions
    ++n_sinks_;
  }
  return n_tokens_++;
}

void RecentStore::write(int row, int kv_head, const float* k, const float* v) {
  const int d = geometry_.head_dim;
  const std::ptrdiff_t head = static_cast<std::ptrdiff_t>(kv_head) * d * capacity_;
  fp16_t* keys = k_.data() + head + row;
  fp16_t* values = v_.data() + head + static_cast<std::ptrdiff_t>(row) * d;
  for (int c = 0; c < d; ++c) {
    keys[static_cast<std::ptrdiff_t>(c) * capacity_] = fp32_to_fp16(k[c]);
    values[c] = fp32_to_fp16(v[c]);
  }
}

void RecentStore::write_fp16(int row, int kv_head, const fp16_t* k, const fp16_t* v) {
  const int d = geometry_.head_dim;
  const std::ptrdiff_t head = static_cast<std::ptrdiff_t>(kv_head) * d * capacity_;
  fp16_t* keys = k_.data() + head + row;
  for (int c = 0; c < d; ++c) keys[static_cast<std::ptrdiff_t>(c) * capacity_] = k[c];
  std::memcpy(v_.data() + head + static_cast<std::ptrdiff_t>(row) * d, v, d * sizeof(fp16_t));
}

void RecentStore::read(int row, int kv_head, fp16_t* k, fp16_t* v) const {
  QE_DCHECK(row >= 0 && row < n_tokens_);
  const int d = geometry_.head_dim;
  const std::ptrdiff_t head = static_cast<std::ptrdiff_t>(kv_head) * d * capacity_;
  const fp16_t* keys = k_.data() + head + row;
  for (int c = 0; c < d; ++c) k[c] = keys[static_cast<std::ptrdiff_t>(c) * capacity_];
  std::memcpy(v, v_.data() + head + static_cast<std::ptrdiff_t>(row) * d, d * sizeof(fp16_t));
}

void RecentStore::drop_local(int n) {
  QE_CHECK(n >= 0 && n <= n_local_tokens());
  if (n == 0) return;
  const int d = geometry_.head_dim;
  const auto kept = static_cast<std::size_t>(n_local_tokens() - n);
  for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(geometry_.n_kv_heads) * d; ++i) {
    fp16_t* lane = k_.data() + i * capacity_ + n_sinks_;
    std::memmove(lane, lane + n, kept * sizeof(fp16_t));
  }
  for (std::ptrdiff_t h = 0; h < geometry_.n_kv_heads; ++h) {
    fp16_t* rows = v_.data() + (h * capacity_ + n_sinks_) * d;
    std::memmove(rows, rows + static_cast<std::ptrdiff_t>(n) * d, kept * d * sizeof(fp16_t));
  }
  n_tokens_ -= n;
}

void RecentStore::clear() { n_sinks_ = n_tokens_ = 0; }

}  // namespace qevict
