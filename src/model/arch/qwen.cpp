// Qwen2 and Qwen2.5 (biases on q, k and v), Qwen3 (norms on q and k instead).
#include "model/arch/arch.h"

namespace qevict {
namespace {

TensorRules qwen2_rules(const HParams& h) {
  TensorRules rules = common_rules(h);
  for (auto& rule : rules.layer) {
    const bool bias = rule.slot == &LayerWeights::q_bias || rule.slot == &LayerWeights::k_bias ||
                      rule.slot == &LayerWeights::v_bias;
    if (bias) rule.required = true;
  }
  rules.global.push_back({"output.bias", &GlobalWeights::output_bias, h.n_vocab, 0, false});
  return rules;
}

TensorRules qwen3_rules(const HParams& h) {
  TensorRules rules = common_rules(h);
  rules.layer.push_back({"attn_q_norm.weight", &LayerWeights::q_norm, h.head_dim, 0, true});
  rules.layer.push_back({"attn_k_norm.weight", &LayerWeights::k_norm, h.head_dim, 0, true});
  return rules;
}

}  // namespace

const ArchSpec& qwen2_arch() {
  static const ArchSpec kSpec{"qwen2", RopePairing::Neox, /*rope_factors=*/false, qwen2_rules};
  return kSpec;
}

const ArchSpec& qwen3_arch() {
  static const ArchSpec kSpec{"qwen3", RopePairing::Neox, /*rope_factors=*/false, qwen3_rules};
  return kSpec;
}

}  // namespace qevict
