// Llama 2, 3, 3.1 and what shares their graph: Mistral, SmolLM, TinyLlama.
#include "model/arch/arch.h"

namespace qevict {
namespace {

TensorRules rules(const HParams& h) {
  TensorRules rules = common_rules(h);
  rules.layer.insert(rules.layer.end(),
                     {
                         {"attn_output.bias", &LayerWeights::attn_out_bias, h.n_embd, 0, false},
                         {"ffn_gate.bias", &LayerWeights::gate_bias, h.n_ff, 0, false},
                         {"ffn_up.bias", &LayerWeights::up_bias, h.n_ff, 0, false},
                         {"ffn_down.bias", &LayerWeights::down_bias, h.n_embd, 0, false},
                     });
  return rules;
}

}  // namespace

const ArchSpec& llama_arch() {
  static const ArchSpec kSpec{"llama", RopePairing::Interleaved, /*rope_factors=*/true, rules};
  return kSpec;
}

}  // namespace qevict
