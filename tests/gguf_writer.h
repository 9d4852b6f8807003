// Writes small models with random weights and a tiny vocabulary, for tests.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace qevict {

struct TinyModel {
  std::string arch = "llama";  // "llama", "qwen2", "qwen3"
  int n_layers = 2;
  int n_heads = 4;
  int n_kv_heads = 2;
  int head_dim = 64;
  int n_embd = 0;  // 0: n_heads * head_dim
  int n_ff = 256;
  int n_ctx = 4096;
  bool tied = true;           // no output.weight
  bool rope_factors = false;  // rope_freqs.weight, as Llama 3.1 (llama only)
  double rope_base = 10000.0;
  double rope_scale = 0.0;   // > 0: linear scaling by this factor
  std::string type = "f32";  // of the matrices: f32, f16, q8_0, q4_0, q4_K, ...
  float key_bias = 0.0F;     // qwen2: size of the biases on k
  std::uint32_t seed = 1;

  // What a test breaks: keys to add or replace, tensors and keys to leave out.
  std::map<std::string, std::int64_t> integers;
  std::map<std::string, std::string> texts;
  std::set<std::string> without;
};

// The vocabulary has this many tokens: <unk>, <s>, </s>, two chat markers, 256 bytes, and letters,
// letter pairs and a few words.
int tiny_vocab_size();

// A path in the temporary folder that no other test process uses.
std::string temp_model_path(const std::string& name);

// Overwrites `path`. Returns what went wrong, or "".
std::string write_tiny_model(const std::string& path, const TinyModel& model);

}  // namespace qevict
