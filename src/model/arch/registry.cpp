#include <array>

#include "model/arch/arch.h"

namespace qevict {

std::span<const ArchSpec* const> all_archs() {
  static const std::array kArchs = {
      &llama_arch(),
      &qwen2_arch(),
      &qwen3_arch(),
  };
  return kArchs;
}

const ArchSpec* find_arch(std::string_view name) {
  for (const ArchSpec* arch : all_archs()) {
    if (name == arch->name) return arch;
  }
  return nullptr;
}

std::string arch_names() {
  std::string names;
  for (const ArchSpec* arch : all_archs()) {
    if (!names.empty()) names += ", ";
    names += arch->name;
  }
  return names;
}

TensorRules common_rules(const HParams& h) {
  const std::int64_t n_q = std::int64_t{h.n_heads} * h.head_dim;
  const std::int64_t n_kv = std::int64_t{h.n_kv_heads} * h.head_dim;
  TensorRules rules;
  rules.global = {
      {"token_embd.weight", &GlobalWeights::token_embd, h.n_embd, h.n_vocab, true},
      {"output_norm.weight", &GlobalWeights::output_norm, h.n_embd, 0, true},
      {"output.weight", &GlobalWeights::output, h.n_embd, h.n_vocab, false},
  };
  rules.layer = {
      {"attn_norm.weight", &LayerWeights::attn_norm, h.n_embd, 0, true},
      {"attn_q.weight", &LayerWeights::q, h.n_embd, n_q, true},
      {"attn_k.weight", &LayerWeights::k, h.n_embd, n_kv, true},
      {"attn_v.weight", &LayerWeights::v, h.n_embd, n_kv, true},
      {"attn_output.weight", &LayerWeights::attn_out, n_q, h.n_embd, true},
      {"attn_q.bias", &LayerWeights::q_bias, n_q, 0, false},
      {"attn_k.bias", &LayerWeights::k_bias, n_kv, 0, false},
      {"attn_v.bias", &LayerWeights::v_bias, n_kv, 0, false},
      {"ffn_norm.weight", &LayerWeights::ffn_norm, h.n_embd, 0, true},
      {"ffn_gate.weight", &LayerWeights::gate, h.n_embd, h.n_ff, true},
      {"ffn_up.weight", &LayerWeights::up, h.n_embd, h.n_ff, true},
      {"ffn_down.weight", &LayerWeights::down, h.n_ff, h.n_embd, true},
  };
  return rules;
}

}  // namespace qevict
