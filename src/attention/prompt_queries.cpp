// What TieredAttention keeps of a prompt's queries for a policy that selects tokens once.
#include <algorithm>

#include "attention/tiered_attention.h"

namespace qevict {

void TieredAttention::begin_queries(int layer) {
  const Geometry& g = geometry_;
  const auto heads = static_cast<std::size_t>(g.n_heads);
  const auto d = static_cast<std::size_t>(g.head_dim);
  n_last_ = std::min(select_needs_.last_queries, n_new_);
  q_last_.reserve(heads * static_cast<std::size_t>(n_last_) * d);
  if (select_needs_.query_moments) {
    query_sum_.assign(heads * d, 0.0);
    query_products_.assign(heads * d * d, 0.0);
  }
  if (select_needs_.mass) {
    head_mass_.resize(heads);
    for (std::size_t h = 0; h < heads; ++h) {
      const LayerCache& unit = cache_.unit(layer, unit_of(static_cast<int>(h) / g.group_size()));
      head_mass_[h].assign(static_cast<std::size_t>(unit.full().size() + n_rows_capacity_), 0.0);
    }
  }
}

// A head's sums are made by one thread, token after token: the same bits for any nth.
void TieredAttention::keep_queries(const QkvBlock& qkv, int ith, int nth) noexcept {
  if (!select_needs_.query_moments) return;
  const auto d = static_cast<std::ptrdiff_t>(geometry_.head_dim);
  const int first = std::max(0, select_needs_.moments_from - first_position_ - block_first_);
  for (int h = ith; h < geometry_.n_heads; h += nth) {
    double* sum = query_sum_.data() + h * d;
    double* products = query_products_.data() + h * d * d;
    for (int t = first; t < qkv.n_tokens; ++t) {
      const float* q = qkv.q + (static_cast<std::ptrdiff_t>(t) * geometry_.n_heads + h) * d;
      for (std::ptrdiff_t i = 0; i < d; ++i) {
        const double x = q[i];
        sum[i] += x;
        double* row = products + i * d;
        for (std::ptrdiff_t j = 0; j <= i; ++j) row[j] += x * q[j];
      }
    }
  }
}

void TieredAttention::finish_queries() {
  PromptQueries& queries = prompt_layer_.queries;
  queries = {};
  queries.q_last = n_last_ > 0 ? q_last_.data() : nullptr;
  queries.n_last = n_last_;
  if (select_needs_.mass) {
    head_mass_views_.assign(head_mass_.begin(), head_mass_.end());
    queries.mass = head_mass_views_;
  }
  if (!select_needs_.query_moments) return;
  const std::int64_t n =
      std::max<std::int64_t>(0, n_new_ - std::max(0, select_needs_.moments_from - first_position_));
  const auto d = static_cast<std::size_t>(geometry_.head_dim);
  const double share = n > 0 ? 1.0 / static_cast<double>(n) : 0.0;
  for (double& x : query_sum_) x *= share;
  for (std::size_t h = 0; h < static_cast<std::size_t>(geometry_.n_heads); ++h) {
    const double* mean = query_sum_.data() + h * d;
    double* matrix = query_products_.data() + h * d * d;
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        const double covariance = matrix[i * d + j] * share - mean[i] * mean[j];
        matrix[i * d + j] = matrix[j * d + i] = covariance;
      }
    }
  }
  queries.moments = {query_sum_.data(), query_products_.data(), n};
}

}  // namespace qevict
