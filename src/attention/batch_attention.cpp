#include "attention/batch_attention.h"

#include <chrono>

namespace qevict {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void BatchAttention::set_sequences(std::span<TieredAttention* const> sequences) {
  QE_CHECK(!sequences.empty());
  sequences_.assign(sequences.begin(), sequences.end());
  const Geometry& g = sequences_[0]->geometry();
  for (const TieredAttention* sequence : sequences_) {
    const Geometry& other = sequence->geometry();
    QE_CHECK(other.n_heads == g.n_heads && other.n_kv_heads == g.n_kv_heads &&
             other.head_dim == g.head_dim);
  }
  q_width_ = std::ptrdiff_t{g.n_heads} * g.head_dim;
  kv_width_ = std::ptrdiff_t{g.n_kv_heads} * g.head_dim;
}

void BatchAttention::prepare(int layer, const QkvBlock& qkv, int ith, int nth) noexcept {
  const auto start = Clock::now();
  const int n = static_cast<int>(sequences_.size());
  QE_DCHECK(qkv.n_tokens == n);
  // Whole sequences while there are enough for all threads, else every sequence's heads.
  const bool whole = n >= nth;
  for (int i = whole ? ith : 0; i < n; i += whole ? nth : 1) {
    const QkvBlock row{qkv.q + i * q_width_, qkv.k + i * kv_width_, qkv.v + i * kv_width_, 1};
    sequences_[static_cast<std::size_t>(i)]->prepare(layer, row, whole ? 0 : ith, whole ? 1 : nth);
  }
  if (ith == 0) seconds_ += seconds_since(start);
}

void BatchAttention::attend(int layer, float* out, int ith, int nth) noexcept {
  const auto start = Clock::now();
  const int n = static_cast<int>(sequences_.size());
  // Each thread starts at its own share, so that a sequence's items mostly stay on one core, and
  // ends by helping the others.
  const int first = static_cast<int>(std::int64_t{n} * ith / nth);
  for (int step = 0; step < n; ++step) {
    const int i = first + step < n ? first + step : first + step - n;
    sequences_[static_cast<std::size_t>(i)]->attend(layer, out + i * q_width_, ith, nth);
  }
  if (ith == 0) seconds_ += seconds_since(start);
}

double BatchAttention::take_seconds() {
  const double seconds = seconds_;
  seconds_ = 0.0;
  return seconds;
}

}  // namespace qevict
