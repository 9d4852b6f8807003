// KVzap's surrogate: scores from a layer's hidden states by a small trained network. A scoring
// function only: its weights belong to models that none of the supported files bring along.
#pragma once

#include <span>
#include <vector>

namespace qevict {

// scores = W2 gelu(W1 x + b1) + b2, or W1 x + b1 without a second layer.
struct KvZapWeights {
  int hidden = 0;
  int mlp_hidden = 0;  // 0: one layer
  int n_kv_heads = 0;
  std::span<const float> w1, b1;  // [mlp_hidden or n_kv_heads][hidden]
  std::span<const float> w2, b2;  // [n_kv_heads][mlp_hidden]
};

// states [n][hidden]; returns [n_kv_heads][n], larger = keep. GELU with the error function.
std::vector<std::vector<float>> kvzap_scores(const KvZapWeights& weights,
                                             std::span<const float> states);

}  // namespace qevict
