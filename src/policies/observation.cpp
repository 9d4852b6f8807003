#include "policies/observation.h"

#include <algorithm>
#include <limits>

#include "policies/selection.h"

namespace qevict {
namespace {

// Tokens at or before a position.
int tokens_until(const PromptHead& head, TokenPos position) {
  return static_cast<int>(std::ranges::upper_bound(head.positions, position) -
                          head.positions.begin());
}

std::span<const float> column_sums(const float* probabilities, std::size_t stride, int rows,
                                   std::vector<float>& sums) {
  std::ranges::fill(sums, 0.0F);
  for (int r = 0; r < rows; ++r) {
    const float* row = probabilities + static_cast<std::size_t>(r) * stride;
    for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += row[j];
  }
  return sums;
}

// Folds one query head into its group's scores.
void reduce(std::span<const float> head, GroupReduction how, std::vector<float>& group) {
  if (how == GroupReduction::Max) {
    for (std::size_t j = 0; j < head.size(); ++j) group[j] = std::max(group[j], head[j]);
  } else {
    for (std::size_t j = 0; j < head.size(); ++j) group[j] += head[j];
  }
}

void scale(std::vector<float>& x, float factor) {
  for (float& value : x) value *= factor;
}

}  // namespace

Observer::Observer(const PromptView& view, int obs_window)
    : view_(view), rows_(std::min(obs_window, view.n_last)) {
  for (const PromptHead& head : view.heads) {
    past_.push_back(tokens_until(head, view.n_tokens - rows_ - 1));
  }
}

const float* Observer::probabilities(int q_head) {
  const int kv_head = q_head / view_.group_size();
  const PromptHead& head = view_.heads[static_cast<std::size_t>(kv_head)];
  const int n = static_cast<int>(head.positions.size());
  if (kv_head != kv_head_) {
    keys_.assign(head.k, n, view_.head_dim);
    probabilities_.resize(keys_.stride() * static_cast<std::size_t>(rows_));
    kv_head_ = kv_head;
  }
  const std::size_t first = static_cast<std::size_t>(q_head + 1) * view_.n_last - rows_;
  keys_.multiply(view_.q_last + first * view_.head_dim, rows_, probabilities_.data());
  for (int r = 0; r < rows_; ++r) {
    softmax_row(probabilities_.data() + static_cast<std::size_t>(r) * stride(),
                tokens_until(head, view_.n_tokens - rows_ + r), n, view_.scale);
  }
  return probabilities_.data();
}

std::vector<float> pool(std::span<const float> x, int kernel, Pooling pooling) {
  const auto n = static_cast<std::ptrdiff_t>(x.size());
  std::vector<float> out(x.size());
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(0, i - kernel / 2);
    const std::ptrdiff_t end = std::min(n, i + kernel / 2 + 1);
    float sum = 0.0F, max = -std::numeric_limits<float>::infinity();
    for (std::ptrdiff_t j = begin; j < end; ++j) {
      sum += x[j];
      max = std::max(max, x[j]);
    }
    out[i] = pooling == Pooling::Max ? max : sum / static_cast<float>(kernel);
  }
  return out;
}

HeadScores observe(const PromptView& view, const Observation& what) {
  Observer observer(view, what.obs_window);
  const int group = view.group_size();
  float factor = what.sum_queries ? 1.0F : 1.0F / static_cast<float>(observer.rows());
  if (what.group == GroupReduction::Mean) factor /= static_cast<float>(group);
  HeadScores scores(view.heads.size());
  std::vector<float> sums;
  for (int g = 0; g < view.n_kv_heads(); ++g) {
    std::vector<float> reduced(static_cast<std::size_t>(observer.past(g)), 0.0F);
    sums.resize(reduced.size());
    for (int h = g * group; h < (g + 1) * group; ++h) {
      const float* rows = observer.probabilities(h);
      reduce(column_sums(rows, observer.stride(), observer.rows(), sums), what.group, reduced);
    }
    scale(reduced, factor);
    scores[g] = pool(reduced, what.kernel, what.pooling);
  }
  return scores;
}

void append_window(const PromptView& view, float score, HeadScores& scores) {
  for (std::size_t g = 0; g < scores.size(); ++g) {
    scores[g].resize(view.heads[g].positions.size(), score);
  }
}

void raise_window(const PromptView& view, HeadScores& scores) {
  // Probabilities are not negative: 0 stands for heads without a past.
  append_window(view, std::max(0.0F, max_of(scores)) + 1.0F, scores);
}

HeadScores snapkv_scores(const PromptView& view, int obs_window, int kernel) {
  HeadScores scores = observe(view, {.obs_window = obs_window, .kernel = kernel});
  raise_window(view, scores);
  return scores;
}

HeadScores tova_scores(const PromptView& view) {
  Observer observer(view, 1);
  const std::size_t n = view.heads.front().positions.size();
  std::vector<float> mean(n, 0.0F);
  for (int h = 0; h < view.n_heads; ++h) {
    const float* row = observer.probabilities(h);
    for (std::size_t j = 0; j < n; ++j) mean[j] += row[j];
  }
  scale(mean, 1.0F / static_cast<float>(view.n_heads));
  if (n > 0) mean.back() = (n > 1 ? *std::max_element(mean.begin(), mean.end() - 1) : 0.0F) + 1.0F;
  return HeadScores(view.heads.size(), mean);
}

float streaming_score(TokenPos position, int n_sink) {
  return position < n_sink ? std::numeric_limits<float>::max() : static_cast<float>(position);
}

HeadScores observed_attention_scores(const PromptView& view) {
  HeadScores scores(view.heads.size());
  const int group = view.group_size();
  for (int g = 0; g < view.n_kv_heads(); ++g) {
    const std::span<const TokenPos> positions = view.heads[g].positions;
    for (std::size_t j = 0; j < positions.size(); ++j) {
      double sum = 0.0;
      for (int h = g * group; h < (g + 1) * group; ++h) sum += view.mass[h][j];
      const double queries = static_cast<double>(view.n_tokens - positions[j]) * group;
      scores[g].push_back(static_cast<float>(sum / queries));
    }
  }
  return scores;
}

HeadScores factory_h2o_scores(const PromptView& view, int obs_window, GroupReduction how) {
  HeadScores scores(view.heads.size());
  const int group = view.group_size();
  for (int g = 0; g < view.n_kv_heads(); ++g) {
    const int past = tokens_until(view.heads[g], view.n_tokens - obs_window - 1);
    scores[g].assign(static_cast<std::size_t>(past), 0.0F);
    std::vector<float> head(scores[g].size());
    for (int h = g * group; h < (g + 1) * group; ++h) {
      for (std::size_t j = 0; j < head.size(); ++j) head[j] = static_cast<float>(view.mass[h][j]);
      reduce(head, how, scores[g]);
    }
    if (how == GroupReduction::Mean) scale(scores[g], 1.0F / static_cast<float>(group));
  }
  return scores;
}

}  // namespace qevict
