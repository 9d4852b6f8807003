// Choosing tokens by score. Everywhere: larger is better, equal scores go to the lower index (of
// heads in order, then of tokens), NaN is the worst score.
#pragma once

#include <span>
#include <vector>

#include "kv/prompt_view.h"

namespace qevict {

// Indexes of the n best (all when there are fewer), ascending.
std::vector<int> best(std::span<const float> scores, int n);

// Raises the n best to the largest float, so that nothing else comes before them.
void pin_best(std::span<float> scores, int n);

// The n_kept best of each head on its own.
void select_per_head(const HeadScores& scores, int n_kept, KeptTokens& kept);

// The `total` best of all heads together, and how many of them each head has.
void select_over_heads(const HeadScores& scores, std::int64_t total, KeptTokens& kept);
std::vector<int> counts_over_heads(const HeadScores& scores, std::int64_t total);

// The newest n_kept of each head: what the policies below do when a budget does not hold even their
// observation window (the engine raises budgets, so that it does).
void select_newest(const PromptView& view, int n_kept, KeptTokens& kept);

std::int64_t n_tokens_of(const HeadScores& scores);
float max_of(const HeadScores& scores);

}  // namespace qevict
