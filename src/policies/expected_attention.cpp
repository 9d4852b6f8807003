// Expected attention: what queries of the next positions would see, if they were distributed as the
// prompt's were.
//
//   logit_j = mu . k_j s + (k_j . Sigma k_j) s^2 / 2        s = the attention's scale
//
// mu and Sigma are the mean and covariance of the prompt's queries before RoPE, turned by the
// rotation averaged over the next n_future positions. Probabilities over all tokens that are no
// sinks, averaged over the group, plus epsilon, times the value's L2 norm. The first n_sink
// positions always stay. A prompt without queries beyond the sinks expects nothing: all tokens
// score alike but for their values.
#include <algorithm>
#include <cmath>

#include "policies/one_shot.h"
#include "policies/selection.h"

namespace qevict {
namespace {

struct Options {
  ExpectedAttention what;
  int n_future = 512;
  bool covariance = true;
  void declare(Parameters& p) {
    p.integer("n_sink", what.n_sink, 0, 4096);
    p.integer("n_future", n_future, 1, 1 << 20);
    p.flag("covariance", covariance);
    p.flag("vnorm", what.use_vnorm);
    p.real("epsilon", what.epsilon, 0.0, 1.0);
  }
};

class ExpectedAttentionKv final : public Selector {
 public:
  explicit ExpectedAttentionKv(const Options& options) : options_(options) {}
  SelectorNeeds needs() const override {
    return {.query_moments = true, .moments_from = options_.what.n_sink};
  }
  int smallest_budget() const override { return std::max(1, options_.what.n_sink); }
  void select(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    const ExpectedQueries queries = expected_queries(view, options_.n_future, options_.covariance);
    select_per_head(expected_attention_scores(view, queries, options_.what), n_kept, kept);
  }

 private:
  Options options_;
};

// cos and sin of each pair's angle, averaged over n positions from `first` on.
struct AverageRotation {
  std::vector<double> cos, sin;
  AverageRotation(const RopeSpec& rope, TokenPos first, int n)
      : cos(rope.inv_freq.size(), 0.0), sin(rope.inv_freq.size(), 0.0) {
    for (std::size_t i = 0; i < cos.size(); ++i) {
      for (int t = 0; t < n; ++t) {
        const double angle = (static_cast<double>(first) + t) * rope.inv_freq[i];
        cos[i] += std::cos(angle) / n;
        sin[i] += std::sin(angle) / n;
      }
    }
  }
};

// Turns the pairs of x, whose channels lie `stride` apart.
void turn(const RopeSpec& rope, const AverageRotation& rotation, double* x, std::size_t stride) {
  const std::size_t half = rotation.cos.size();
  const bool neox = rope.pairing == RopePairing::Neox;
  for (std::size_t i = 0; i < half; ++i) {
    double& a = x[(neox ? i : 2 * i) * stride];
    double& b = x[(neox ? i + half : 2 * i + 1) * stride];
    const double turned = a * rotation.cos[i] - b * rotation.sin[i];
    b = b * rotation.cos[i] + a * rotation.sin[i];
    a = turned;
  }
}

// exp(logits) normalised over the tokens from `begin` on, added to `sum`.
void add_probabilities(std::vector<float>& logits, std::size_t begin, std::span<float> sum) {
  const int n = static_cast<int>(sum.size());
  softmax_row(logits.data() + begin, n, n, 1.0F);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += logits[begin + i];
}

float norm(const float* v, int n) {
  float sum = 0.0F;
  for (int i = 0; i < n; ++i) sum += v[i] * v[i];
  return std::sqrt(sum);
}

}  // namespace

ExpectedQueries expected_queries(const PromptView& view, int n_future, bool use_covariance) {
  const auto d = static_cast<std::size_t>(view.head_dim);
  const auto n_heads = static_cast<std::size_t>(view.n_heads);
  ExpectedQueries queries{std::vector<float>(n_heads * d), {}};
  if (use_covariance) queries.covariance.resize(n_heads * d * d);
  if (view.queries.n_queries == 0) return queries;
  const AverageRotation rotation(*view.rope, view.n_tokens, n_future);
  std::vector<double> x(d * d);
  for (std::size_t h = 0; h < n_heads; ++h) {
    std::copy_n(view.queries.mean + h * d, d, x.begin());
    turn(*view.rope, rotation, x.data(), 1);
    std::copy_n(x.begin(), d, queries.mean.begin() + h * d);
    if (!use_covariance) continue;
    // R Sigma R^T: rows first, then columns.
    std::copy_n(view.queries.covariance + h * d * d, d * d, x.begin());
    for (std::size_t c = 0; c < d; ++c) turn(*view.rope, rotation, x.data() + c, d);
    for (std::size_t r = 0; r < d; ++r) turn(*view.rope, rotation, x.data() + r * d, 1);
    std::ranges::copy(x, queries.covariance.begin() + h * d * d);
  }
  return queries;
}

HeadScores expected_attention_scores(const PromptView& view, const ExpectedQueries& queries,
                                     const ExpectedAttention& options) {
  const auto d = static_cast<std::size_t>(view.head_dim);
  const int group = view.group_size();
  HeadScores scores(view.heads.size());
  std::vector<std::size_t> sinks;
  KeyProducts keys;
  for (int g = 0; g < view.n_kv_heads(); ++g) {
    const PromptHead& head = view.heads[g];
    const int n = static_cast<int>(head.positions.size());
    const auto first = std::ranges::lower_bound(head.positions, options.n_sink);
    sinks.push_back(static_cast<std::size_t>(first - head.positions.begin()));
    scores[g].assign(head.positions.size(), 0.0F);
    const std::span<float> others = std::span(scores[g]).subspan(sinks.back());
    keys.assign(head.k, n, view.head_dim);
    std::vector<float> logits(keys.stride()), spread(keys.stride(), 0.0F);
    for (std::size_t h = g * group; h < static_cast<std::size_t>((g + 1) * group); ++h) {
      keys.multiply(queries.mean.data() + h * d, 1, logits.data());
      if (!queries.covariance.empty()) {
        keys.quadratic(queries.covariance.data() + h * d * d, spread.data());
      }
      for (std::size_t i = 0; i < logits.size(); ++i) {
        logits[i] = logits[i] * view.scale + spread[i] * view.scale * view.scale * 0.5F;
      }
      add_probabilities(logits, sinks.back(), others);
    }
    for (std::size_t i = sinks.back(); i < scores[g].size(); ++i) {
      scores[g][i] /= static_cast<float>(group);
      if (!options.use_vnorm) continue;
      scores[g][i] = (scores[g][i] + static_cast<float>(options.epsilon)) *
                     norm(head.v + i * d, view.head_dim);
    }
  }
  const float pinned = std::max(0.0F, max_of(scores)) + 1.0F;
  for (std::size_t g = 0; g < scores.size(); ++g) std::fill_n(scores[g].begin(), sinks[g], pinned);
  return scores;
}

PolicySpec expected_attention_policy() {
  return one_shot_policy<ExpectedAttentionKv, Options>(
      "expected_attention",
      "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries "
      "Distribution (arXiv 2510.00636)");
}

}  // namespace qevict
