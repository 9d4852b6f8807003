// What distinguishes the supported architectures: RoPE pairing and the tensors of the file.
//
// Adding one: a file that fills an ArchSpec, and a line in registry.cpp. The graph follows from
// which tensors are there (graph.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/geometry.h"
#include "model/model.h"

struct ggml_tensor;

namespace qevict {

// Null where the architecture or the file has no such tensor.
struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;  // [n_embd]
  ggml_tensor* q = nullptr;          // [n_embd -> n_heads * head_dim]
  ggml_tensor* k = nullptr;          // [n_embd -> n_kv_heads * head_dim]
  ggml_tensor* v = nullptr;
  ggml_tensor* attn_out = nullptr;  // [n_heads * head_dim -> n_embd]
  ggml_tensor* q_bias = nullptr;
  ggml_tensor* k_bias = nullptr;
  ggml_tensor* v_bias = nullptr;
  ggml_tensor* attn_out_bias = nullptr;
  ggml_tensor* q_norm = nullptr;  // [head_dim], per head
  ggml_tensor* k_norm = nullptr;
  ggml_tensor* ffn_norm = nullptr;  // [n_embd]
  ggml_tensor* gate = nullptr;      // [n_embd -> n_ff]
  ggml_tensor* up = nullptr;
  ggml_tensor* down = nullptr;  // [n_ff -> n_embd]
  ggml_tensor* gate_bias = nullptr;
  ggml_tensor* up_bias = nullptr;
  ggml_tensor* down_bias = nullptr;
};

struct GlobalWeights {
  ggml_tensor* token_embd = nullptr;   // [n_embd, n_vocab], read row by row
  ggml_tensor* output_norm = nullptr;  // [n_embd]
  ggml_tensor* output = nullptr;       // [n_embd -> n_vocab]; the embeddings again where tied
  ggml_tensor* output_bias = nullptr;  // [n_vocab]
};

// One tensor that each layer (or the model) has. n_out = 0: a vector, kept in fp32.
template <typename Weights>
struct TensorRule {
  const char* name;  // without "blk.N."
  ggml_tensor* Weights::* slot;
  std::int64_t n_in;
  std::int64_t n_out;
  bool required;
};

struct TensorRules {
  std::vector<TensorRule<LayerWeights>> layer;
  std::vector<TensorRule<GlobalWeights>> global;
};

struct ArchSpec {
  const char* name;  // general.architecture
  RopePairing pairing;
  bool rope_factors;  // may have rope_freqs.weight: a divisor for each frequency (Llama 3.1)
  TensorRules (*rules)(const HParams&);
};

const ArchSpec& llama_arch();
const ArchSpec& qwen2_arch();
const ArchSpec& qwen3_arch();

std::span<const ArchSpec* const> all_archs();
const ArchSpec* find_arch(std::string_view name);  // null: not supported
std::string arch_names();                          // "llama, qwen2, qwen3"

// The tensors that all of them share.
TensorRules common_rules(const HParams& hparams);

}  // namespace qevict
