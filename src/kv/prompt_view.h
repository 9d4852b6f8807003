// What the prompt of one layer leaves for a policy that chooses tokens once, right after it.
//
// Everything is a view; it lives only during the call. Positions are absolute. On a first prompt
// all heads hold the same tokens, 0 .. n - 1; on an appended one each head holds what earlier
// prompts left of it, then the new tokens.
#pragma once

#include <span>
#include <vector>

#include "kernels/rope.h"
#include "kv/types.h"

namespace qevict {

// The candidates of one KV head, ascending positions.
struct PromptHead {
  std::span<const TokenPos> positions;  // [n]
  const float* k = nullptr;             // [n][D], post-RoPE
  const float* v = nullptr;             // [n][D]
};

// Mean and covariance (divided by their number) of the queries before RoPE, from position `from`
// on.
struct QueryMoments {
  const double* mean = nullptr;        // [n_heads][D]
  const double* covariance = nullptr;  // [n_heads][D][D]
  std::int64_t n_queries = 0;
};

struct PromptView {
  int layer = 0;
  int n_layers = 0;
  int n_heads = 0;  // query heads; head h reads KV head h / (n_heads / n_kv_heads)
  int head_dim = 0;
  float scale = 1.0F;     // multiplies q . k
  TokenPos n_tokens = 0;  // positions so far: the last query is at n_tokens - 1
  const RopeSpec* rope = nullptr;
  std::span<const PromptHead> heads;  // [n_kv_heads]
  // The last n_last queries, post-RoPE, not scaled: [n_heads][n_last][D]. Fewer than the policy
  // asked for when the prompt is shorter.
  const float* q_last = nullptr;
  int n_last = 0;
  QueryMoments queries;  // where needed
  // || v_j W_o[h] ||_1 by query head: value_norms[h][i] belongs to token i of KV head h / group.
  std::span<const std::span<const float>> value_norms;  // [n_heads][n]; where needed
  // Column sums of the causal softmax over all rows of the prompt: [n_heads][n]; where needed.
  std::span<const std::span<const double>> mass;

  int n_kv_heads() const { return static_cast<int>(heads.size()); }
  int group_size() const { return n_heads / n_kv_heads(); }
};

using HeadScores = std::vector<std::vector<float>>;  // [n_kv_heads][n], larger = keep
using KeptTokens = std::vector<std::vector<int>>;    // [n_kv_heads]: ascending token indexes

}  // namespace qevict
