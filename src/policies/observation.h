// What the last queries of a prompt see: the base of the policies that choose tokens once.
//
// Columns are token indexes of a KV head. The observation window is the last rows() positions; a
// head's tokens before it are its `past`. On an appended prompt heads hold different tokens:
// neighbours, for pooling, are tokens next to each other among those that the head still holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/prompt_view.h"
#include "policies/key_products.h"

namespace qevict {

// Attention probabilities of a layer's last queries, one query head at a time.
class Observer {
 public:
  // Fewer rows than obs_window when the prompt that just came has fewer tokens.
  Observer(const PromptView& view, int obs_window);
  int rows() const { return rows_; }
  // Tokens of a KV head before the observation window.
  int past(int kv_head) const { return past_[static_cast<std::size_t>(kv_head)]; }
  // Softmax over the tokens at or before each query's position: [rows()][stride()], zeros
  // elsewhere. Valid until the next call. Fast when heads come in order.
  const float* probabilities(int q_head);
  std::size_t stride() const { return keys_.stride(); }
  const float* row(int r) const {
    return probabilities_.data() + static_cast<std::size_t>(r) * stride();
  }

 private:
  const PromptView& view_;
  int rows_;
  int kv_head_ = -1;  // whose keys are in keys_
  std::vector<int> past_;
  KeyProducts keys_;
  std::vector<float> probabilities_;
};

enum class Pooling : std::uint8_t { Average, Max };
enum class GroupReduction : std::uint8_t { Mean, Max, Sum };

// Centred, `kernel` odd. Average: beyond the ends are zeros, always divided by `kernel`.
std::vector<float> pool(std::span<const float> x, int kernel, Pooling pooling);

struct Observation {
  int obs_window = 64;
  int kernel = 5;  // 1: no pooling
  Pooling pooling = Pooling::Average;
  GroupReduction group = GroupReduction::Mean;
  bool sum_queries = false;  // otherwise their mean
};

// Scores of each head's past [past]: over the queries, then over the group's query heads, pooled.
HeadScores observe(const PromptView& view, const Observation& what);

// Appends the observation window's tokens, all with this score.
void append_window(const PromptView& view, float score, HeadScores& scores);

// The same with the largest score of all heads plus 1.
void raise_window(const PromptView& view, HeadScores& scores);

// SnapKV as kvpress defines it: observe(), the window raised.
HeadScores snapkv_scores(const PromptView& view, int obs_window, int kernel);

// TOVA: attention of the last query, mean over all query heads and so the same row for every KV
// head; the last token is the largest plus 1. Heads must hold the same tokens.
HeadScores tova_scores(const PromptView& view);

// StreamingLLM: the sinks, then the newer tokens. KVCache-Factory's keeps n_kept - 32 sinks.
float streaming_score(TokenPos position, int n_sink);

// Column sums of the whole prompt's attention (PromptView::mass), mean over the group. Observed
// attention divides by the number of queries that could see the token.
HeadScores observed_attention_scores(const PromptView& view);
// H2O as KVCache-Factory defines it: neither divided nor pooled, the last obs_window tokens left
// out.
HeadScores factory_h2o_scores(const PromptView& view, int obs_window, GroupReduction group);

}  // namespace qevict
