// DefensiveKV: a token's worst case over the last queries instead of their mean.
//
//   1. Each query's probabilities of the past are pooled and rescaled to their sum before pooling.
//   2. A token's score is the largest over the group's queries, at least the mean of the head.
//   3. It is multiplied by the token's value norm, relative to the other heads' norms of the same
//      token.
//   4. In each head the tokens that carry the most average attention, up to 0.9 in sum less
//      window_bias, are pinned at the layer's largest score.
//   5. The observation window is pinned, too; the best of all heads stay.
//
// As in the authors' code, window_bias is the attention on the last obs_window tokens before the
// observation window (meant was the window itself), and the token that reaches the sum is not
// pinned. Their limit of pinned tokens turns negative for small budgets and then inverts the
// choice: here nothing is pinned instead. A token that only some heads still hold is compared with
// those heads, as if all others were like them. Where attention is so peaked that a whole past has
// no probability, all its scores are 0.
#include <algorithm>

#include "policies/one_shot.h"
#include "policies/selection.h"

namespace qevict {
namespace {

struct Options {
  int obs_window = 32;
  int kernel = 5;
  void declare(Parameters& p) {
    p.integer("obs_window", obs_window, 1, 4096);
    p.odd("kernel", kernel, 1, 255);
  }
};

class DefensiveKv final : public ObservingSelector {
 public:
  explicit DefensiveKv(const Options& options)
      : ObservingSelector(options.obs_window), kernel_(options.kernel) {}
  SelectorNeeds needs() const override {
    return {.last_queries = obs_window(), .value_norms = true};
  }

 private:
  void choose(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    const DefensiveParts parts = defensive_parts(view, obs_window(), kernel_);
    const HeadScores scores = defensive_scores(view, parts, obs_window(), n_kept, nullptr);
    select_over_heads(scores, std::int64_t{n_kept} * view.n_kv_heads(), kept);
  }
  int kernel_;
};

double sum_of(std::span<const float> x) {
  double sum = 0.0;
  for (const float value : x) sum += value;
  return sum;
}

// Adds one query's row to what is gathered of its KV head.
void gather(std::span<const float> row, int kernel, std::vector<float>& average,
            std::vector<float>& worst) {
  for (std::size_t j = 0; j < row.size(); ++j) average[j] += row[j];
  const std::vector<float> pooled = pool(row, kernel, Pooling::Average);
  const double pooled_sum = sum_of(pooled);
  const auto factor = static_cast<float>(pooled_sum > 0.0 ? sum_of(row) / pooled_sum : 0.0);
  for (std::size_t j = 0; j < row.size(); ++j) worst[j] = std::max(worst[j], pooled[j] * factor);
}

// value_weights() of the past as shares of the sum over the heads.
HeadScores relative_weights(const PromptView& view, const HeadScores& past) {
  HeadScores weights = value_weights(view);
  struct Sum {
    double value = 0.0;
    int heads = 0;
  };
  std::vector<Sum> sums(static_cast<std::size_t>(view.n_tokens));  // by position
  for (std::size_t g = 0; g < past.size(); ++g) {
    weights[g].resize(past[g].size());
    for (std::size_t i = 0; i < past[g].size(); ++i) {
      Sum& sum = sums[view.heads[g].positions[i]];
      sum.value += weights[g][i];
      ++sum.heads;
    }
  }
  for (std::size_t g = 0; g < past.size(); ++g) {
    for (std::size_t i = 0; i < past[g].size(); ++i) {
      const Sum& sum = sums[view.heads[g].positions[i]];
      const double all = sum.value / sum.heads * static_cast<double>(past.size());
      weights[g][i] = static_cast<float>(all > 0.0 ? weights[g][i] / all : 0.0);
    }
  }
  return weights;
}

// How many of the most attended tokens lie before the sum of 0.9 - window_bias.
int stage1_count(std::span<const float> average, double window_bias, int limit) {
  std::vector<float> sorted(average.begin(), average.end());
  std::ranges::sort(sorted, std::greater<>());
  const double all = sum_of(sorted);
  double sum = 0.0;
  for (std::size_t i = 0; all > 0.0 && i < sorted.size(); ++i) {
    sum += sorted[i] / all;
    if (sum >= 0.9 - window_bias) return std::clamp(static_cast<int>(i), 0, std::max(0, limit));
  }
  return 0;
}

}  // namespace

DefensiveParts defensive_parts(const PromptView& view, int obs_window, int kernel) {
  Observer observer(view, obs_window);
  const int group = view.group_size();
  const float rows = static_cast<float>(group * observer.rows());
  DefensiveParts parts{HeadScores(view.heads.size()), HeadScores(view.heads.size()), 0.0};
  for (int g = 0; g < view.n_kv_heads(); ++g) {
    const auto past = static_cast<std::size_t>(observer.past(g));
    std::vector<float>& average = parts.average[g];
    std::vector<float>& worst = parts.defensive[g];
    average.assign(past, 0.0F);
    worst.assign(past, 0.0F);
    for (int h = g * group; h < (g + 1) * group; ++h) {
      const float* probabilities = observer.probabilities(h);
      for (int r = 0; r < observer.rows(); ++r) {
        gather({probabilities + r * observer.stride(), past}, kernel, average, worst);
      }
    }
    for (float& value : average) value /= rows;
    const auto near = std::min(past, static_cast<std::size_t>(obs_window));
    parts.window_bias += sum_of(std::span(average).last(near)) / view.n_kv_heads();
    const auto mean = static_cast<float>(past > 0 ? sum_of(worst) / static_cast<double>(past) : 0);
    for (float& value : worst) value = std::max(value, mean);
  }
  return parts;
}

HeadScores defensive_scores(const PromptView& view, const DefensiveParts& parts, int obs_window,
                            double n_kept, std::vector<int>* stage1_counts) {
  HeadScores scores = relative_weights(view, parts.defensive);
  for (std::size_t g = 0; g < scores.size(); ++g) {
    for (std::size_t i = 0; i < scores[g].size(); ++i) scores[g][i] *= parts.defensive[g][i];
  }
  const float max = std::max(0.0F, max_of(scores));
  for (std::size_t g = 0; g < scores.size(); ++g) {
    const auto n = static_cast<double>(view.heads[g].positions.size());
    const double limit = static_cast<double>(scores[g].size()) * (n_kept / n) - obs_window;
    const int count =
        stage1_count(parts.average[g], parts.window_bias, static_cast<int>(std::min(limit, n)));
    for (const int i : best(parts.average[g], count)) scores[g][i] = max;
    if (stage1_counts != nullptr) stage1_counts->push_back(count);
  }
  append_window(view, max, scores);
  return scores;
}

PolicySpec defensivekv_policy() {
  return one_shot_policy<DefensiveKv, Options>(
      "defensivekv",
      "DefensiveKV: Taming the Fragility of KV Cache Eviction in LLM Inference (arXiv 2510.13334)");
}

}  // namespace qevict
