#include "policies/selection.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>

namespace qevict {
namespace {

// Unsigned integers in the order of the floats; +0 and -0 are equal, NaN comes first.
std::uint32_t order(float x) {
  if (std::isnan(x)) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0F);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

// One number by which larger comes first: the score, then the lower index.
std::uint64_t rank(float score, std::uint32_t index) {
  return static_cast<std::uint64_t>(order(score)) << 32 | ~index;
}

// The indexes of the n largest, unsorted.
std::vector<std::uint32_t> take_best(std::vector<std::uint64_t> ranks, std::int64_t n) {
  n = std::clamp<std::int64_t>(n, 0, static_cast<std::int64_t>(ranks.size()));
  if (n > 0) std::ranges::nth_element(ranks, ranks.begin() + (n - 1), std::greater<>());
  std::vector<std::uint32_t> indexes(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    indexes[i] = ~static_cast<std::uint32_t>(ranks[i]);
  }
  return indexes;
}

std::vector<std::uint32_t> best_over_heads(const HeadScores& scores, std::int64_t total) {
  std::vector<std::uint64_t> ranks;
  ranks.reserve(static_cast<std::size_t>(n_tokens_of(scores)));
  for (const std::vector<float>& head : scores) {
    for (const float score : head) {
      ranks.push_back(rank(score, static_cast<std::uint32_t>(ranks.size())));
    }
  }
  return take_best(std::move(ranks), total);
}

// Calls visit(head, index in the head) for each flattened index, which are sorted first.
template <typename Visit>
void visit_heads(const HeadScores& scores, std::vector<std::uint32_t> flat, Visit visit) {
  std::ranges::sort(flat);
  std::size_t head = 0;
  std::uint32_t begin = 0;
  for (const std::uint32_t index : flat) {
    while (index - begin >= scores[head].size()) {
      begin += static_cast<std::uint32_t>(scores[head++].size());
    }
    visit(head, static_cast<int>(index - begin));
  }
}

}  // namespace

std::vector<int> best(std::span<const float> scores, int n) {
  std::vector<std::uint64_t> ranks(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    ranks[i] = rank(scores[i], static_cast<std::uint32_t>(i));
  }
  const std::vector<std::uint32_t> indexes = take_best(std::move(ranks), n);
  std::vector<int> sorted(indexes.begin(), indexes.end());
  std::ranges::sort(sorted);
  return sorted;
}

void pin_best(std::span<float> scores, int n) {
  for (const int i : best(scores, n)) scores[i] = std::numeric_limits<float>::max();
}

void select_per_head(const HeadScores& scores, int n_kept, KeptTokens& kept) {
  for (std::size_t h = 0; h < scores.size(); ++h) kept[h] = best(scores[h], n_kept);
}

void select_over_heads(const HeadScores& scores, std::int64_t total, KeptTokens& kept) {
  visit_heads(scores, best_over_heads(scores, total),
              [&](std::size_t head, int index) { kept[head].push_back(index); });
}

std::vector<int> counts_over_heads(const HeadScores& scores, std::int64_t total) {
  std::vector<int> counts(scores.size());
  visit_heads(scores, best_over_heads(scores, total),
              [&](std::size_t head, int) { ++counts[head]; });
  return counts;
}

void select_newest(const PromptView& view, int n_kept, KeptTokens& kept) {
  for (std::size_t h = 0; h < view.heads.size(); ++h) {
    const int n = static_cast<int>(view.heads[h].positions.size());
    const int count = std::clamp(n_kept, 0, n);
    kept[h].resize(static_cast<std::size_t>(count));
    std::iota(kept[h].begin(), kept[h].end(), n - count);
  }
}

std::int64_t n_tokens_of(const HeadScores& scores) {
  std::int64_t n = 0;
  for (const std::vector<float>& head : scores) n += static_cast<std::int64_t>(head.size());
  return n;
}

float max_of(const HeadScores& scores) {
  float max = -std::numeric_limits<float>::infinity();
  for (const std::vector<float>& head : scores) {
    for (const float score : head) max = std::max(max, score);
  }
  return max;
}

}  // namespace qevict
