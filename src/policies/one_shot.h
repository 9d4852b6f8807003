// The pure functions of the policies that choose tokens once, each defined in its policy's file.
// Base scores are in observation.h, choices by score in selection.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/policy.h"
#include "kv/prompt_view.h"
#include "policies/observation.h"
#include "policies/parameters.h"

namespace qevict {

// What most of them share: they look at the last queries, and the tokens of that observation window
// always stay. A budget that holds no more than the window keeps the newest n_kept of each head;
// choose() is asked for more than the window.
class ObservingSelector : public Selector {
 public:
  explicit ObservingSelector(int obs_window) : obs_window_(obs_window) {}
  SelectorNeeds needs() const override { return {.last_queries = obs_window_}; }
  int smallest_budget() const override { return obs_window_; }
  void select(const PromptView& view, int n_kept, KeptTokens& kept) const final;

 protected:
  int obs_window() const { return obs_window_; }

 private:
  virtual void choose(const PromptView& view, int n_kept, KeptTokens& kept) const = 0;
  int obs_window_;
};

// The whole PolicySpec of a Selector made from its Options (parameters.h).
template <typename Mine, typename Options>
PolicySpec one_shot_policy(std::string name, std::string paper) {
  PolicySpec policy;
  policy.name = std::move(name);
  policy.paper = std::move(paper);
  policy.parameters = options_text<Options>().empty() ? "none" : options_text<Options>();
  policy.schedule = Schedule::Once;
  policy.per_head = true;
  policy.check_parameters = check_options<Options>;
  policy.make_selector = [](const CacheConfig& config) {
    return std::make_unique<Mine>(read_options<Options>(config));
  };
  return policy;
}

// The parameters of an observation: obs_window, kernel, pooling, group.
void declare_observation(Parameters& p, Observation& what);

// --- pyramidkv.cpp: tokens that a layer keeps, the observation window included.
// kvpress: `kept` on average; flat when the line would leave the limits. A single layer is the
// first of its line.
int pyramid_budget(double kept, TokenPos n_tokens, int layer, int n_layers, int obs_window,
                   int beta);
// KVCache-Factory, whose whole-number steps miss the average by a little.
int factory_pyramid_budget(int n_kept, TokenPos n_tokens, int layer, int n_layers, int obs_window,
                           int beta);

// --- adakv.cpp
// kvpress: the n_safe best of each head, then the best of all heads up to n_kept a head.
void adakv_select(HeadScores scores, int n_kept, int n_safe, KeptTokens& kept);
// FFY0's: tokens that each head keeps before its window. `scores` are of the past, `base` is the
// average number.
std::vector<int> adakv_official_counts(const HeadScores& scores, int base, double floor_alpha,
                                       bool normalize);
// DefensiveKV's variant: pins the n_floor best of each head's past and the window, which it
// appends.
void pin_floor(const PromptView& view, int n_floor, HeadScores& scores);

// --- criticalkv.cpp
// || v W_o[h] ||_1, mean over the group: [n_kv_heads][n].
HeadScores value_weights(const PromptView& view);
// The best of one head: n_first by base score, the others by (base + epsilon) * weight.
std::vector<int> critical_best(std::span<const float> base, std::span<const float> weights,
                               int n_kept, int n_first, double epsilon);
// CriticalAdaKV: the heads' budgets are AdaKV's; n_first = max(n_safe, first_share * budget).
void critical_adakv_select(const HeadScores& base, const HeadScores& weights, int n_kept,
                           int n_safe, double first_share, double epsilon, KeptTokens& kept);

// --- defensivekv.cpp
struct DefensiveParts {
  HeadScores average;    // [past]: mean over group and queries
  HeadScores defensive;  // [past]: the worst case, not below its own mean
  double window_bias = 0.0;
};
DefensiveParts defensive_parts(const PromptView& view, int obs_window, int kernel);
// Scores to select by, over all heads. n_kept: tokens a head keeps on average. stage1_counts: how
// many tokens of each head are pinned; may be null.
HeadScores defensive_scores(const PromptView& view, const DefensiveParts& parts, int obs_window,
                            double n_kept, std::vector<int>* stage1_counts);

// --- layer_defensivekv.cpp: tokens of each layer when the `total` best of all layers are kept.
std::vector<std::int64_t> layer_shares(std::span<const HeadScores> layers, std::int64_t total);

// --- expected_attention.cpp
struct ExpectedQueries {
  std::vector<float> mean;        // [n_heads][D], rotated
  std::vector<float> covariance;  // [n_heads][D][D], rotated; empty: not used
};
// The queries' moments turned by RoPE averaged over the next n_future positions.
ExpectedQueries expected_queries(const PromptView& view, int n_future, bool use_covariance);
struct ExpectedAttention {
  int n_sink = 4;
  bool use_vnorm = true;
  double epsilon = 0.0;
};
HeadScores expected_attention_scores(const PromptView& view, const ExpectedQueries& queries,
                                     const ExpectedAttention& options);

// --- knorm.cpp: minus the L2 norm of the keys.
HeadScores knorm_scores(const PromptView& view);

}  // namespace qevict
