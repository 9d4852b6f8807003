// Logits of Forward against libllama's on the same file: another implementation of attention, KV
// cache and RoPE, the same matrices.
//
// Tolerances. libllama without flash attention rounds queries and probabilities to fp16 too, which
// the reference here does not: fp32 and fp16 weights leave a mean KL of 1e-8 to 5e-6. Quantised
// weights are multiplied with activations rounded to int8, where a last-bit difference in attention
// moves whole steps, layer after layer: there libllama's own two attention paths (with and without
// flash attention) differ by a mean KL of 1e-3 in a model of 24 layers, and that is the yardstick.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "gguf_writer.h"
#include "libllama_oracle.h"
#include "model/model.h"
#include "reference_attention.h"

namespace qevict {
namespace {

constexpr int kPrompts = 3;
constexpr int kTokens = 64;
constexpr int kDecoded = 16;  // of them one by one in the first of two runs
// One: threads of ggml spin at barriers, which takes forever where other tests run beside this one.
constexpr int kThreads = 1;

std::vector<TokenId> random_prompt(int index, int n_vocab) {
  std::vector<TokenId> tokens;
  std::uint32_t state = 12345U + 977U * static_cast<std::uint32_t>(index);
  for (int i = 0; i < kTokens; ++i) {
    state = state * 1664525U + 1013904223U;
    tokens.push_back(static_cast<TokenId>((state >> 8) % static_cast<std::uint32_t>(n_vocab)));
  }
  return tokens;
}

// Text that language models find likely: what they are made for.
const char* const kTexts[kPrompts] = {
    "Once upon a time there was a little girl named Lily. She loved to play outside in the park "
    "with "
    "her friends. One day she saw a big red ball near the old tree and wanted to play with it. Her "
    "mother told her that the ball was not hers, so they went to find the boy who had lost it. He "
    "was "
    "very happy and thanked them both for their kindness.",
    "The capital of France is Paris, a city on the river Seine. It has been an important centre of "
    "finance, trade, fashion and science since the seventeenth century. Visitors come to see the "
    "Eiffel Tower, the Louvre and the cathedral of Notre-Dame, and to walk along the wide streets "
    "that were built in the nineteenth century for a growing population.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    a, b = 0, 1\n    for _ in range(n - "
    "1):\n"
    "        a, b = b, a + b\n    return b\n\nprint([fibonacci(i) for i in range(10)])\n\n# The "
    "list "
    "above starts with zero and one; every number after them is the sum of the two before it.\n"};

std::vector<TokenId> prompt(const Model& model, int index) {
  auto tokens = model.tokenizer().encode(kTexts[index], true, false);
  if (tokens && model.hparams().n_vocab != tiny_vocab_size() && tokens->size() >= kTokens) {
    tokens->resize(kTokens);
    return *tokens;
  }
  const int n_vocab = model.hparams().n_vocab;
  return random_prompt(index, n_vocab);
}

// The first n_block tokens through layer() as one block, the rest one by one through decode().
Result<std::vector<float>> our_logits(const Model& model, Forward& forward,
                                      const std::vector<TokenId>& tokens, int n_block) {
  const HParams& h = model.hparams();
  ReferenceAttention attention(h, kTokens);
  std::vector<float> out(tokens.size() * h.n_vocab);
  std::vector<float> hidden(static_cast<std::size_t>(n_block) * h.n_embd);
  Status status = forward.embed({tokens.data(), static_cast<std::size_t>(n_block)}, hidden.data());
  for (int layer = 0; status && layer < h.n_layers; ++layer) {
    status = forward.layer(layer, hidden.data(), n_block, attention, 0);
  }
  for (int i = 0; status && i < n_block; ++i) {
    status = forward.head(&hidden[std::size_t(i) * h.n_embd], &out[std::size_t(i) * h.n_vocab]);
  }
  attention.advance(n_block);
  for (std::size_t i = n_block; status && i < tokens.size(); ++i) {
    status = forward.decode(tokens[i], attention, &out[i * h.n_vocab]);
    attention.advance(1);
  }
  if (!status) return std::unexpected(status.error());
  return out;
}

constexpr double kExactKl = 2e-5;
constexpr double kExactGap = 0.1;

// Mean KL and greedy tokens against libllama without flash attention. `exact`: the weights are fp32
// or fp16, so that the fixed bounds hold.
void expect_agreement(const std::string& path, bool repack, bool exact) {
  ModelOptions options;
  options.repack = repack;
  auto model = Model::load(path, options);
  ASSERT_TRUE(model) << model.error().message;
  Libllama llama(path, repack);
  ASSERT_TRUE(llama.ok());
  auto forward = Forward::create(**model, kThreads);
  ASSERT_TRUE(forward) << forward.error().message;
  const int n_vocab = (*model)->hparams().n_vocab;
  Agreement own;  // libllama with itself
  Agreement ours[2];
  GreedyTokens tokens_kept[2];
  for (int p = 0; p < kPrompts; ++p) {
    const std::vector<TokenId> tokens = prompt(**model, p);
    const std::vector<float> reference = llama.logits(tokens, false);
    ASSERT_EQ(reference.size(), tokens.size() * n_vocab);
    own.add(reference, llama.logits(tokens, true), n_vocab);
    for (int run = 0; run < 2; ++run) {
      const int n_block = run == 0 ? kTokens - kDecoded : kTokens;
      const auto logits = our_logits(**model, **forward, tokens, n_block);
      ASSERT_TRUE(logits) << logits.error().message;
      ours[run].add(reference, *logits, n_vocab);
      const double gap = exact ? kExactGap : std::max(kExactGap, own.max_difference);
      tokens_kept[run].add(reference, *logits, n_vocab, gap);
    }
  }
  const double bound = exact ? kExactKl : std::max(kExactKl, 1.5 * own.mean_kl);
  for (int run = 0; run < 2; ++run) {
    EXPECT_LT(ours[run].mean_kl, bound) << path << " repack " << repack << " run " << run;
    EXPECT_EQ(tokens_kept[run].wrong, 0) << path << " repack " << repack << " run " << run;
    EXPECT_GT(tokens_kept[run].clear, kTokens / 2) << "the comparison says little about " << path;
  }
  std::printf(
      "  %s, %s: mean KL %.1e and %.1e (libllama's flash path %.1e), largest logit difference "
      "%.1e (%.1e), first tokens kept %d of %d\n",
      std::filesystem::path(path).filename().c_str(), (*model)->layout_summary().c_str(),
      ours[0].mean_kl, ours[1].mean_kl, own.mean_kl, ours[1].max_difference, own.max_difference,
      tokens_kept[1].clear - tokens_kept[1].wrong, tokens_kept[1].clear);
}

struct Case {
  std::string name;
  TinyModel model;
  bool exact;
};

class LibllamaAgreement : public testing::TestWithParam<Case> {};

TEST_P(LibllamaAgreement, GivesTheSameLogits) {
  const std::string path = temp_model_path(GetParam().name);
  ASSERT_EQ(write_tiny_model(path, GetParam().model), "");
  for (bool repack : {false, true}) expect_agreement(path, repack, GetParam().exact);
  std::filesystem::remove(path);
}

std::vector<Case> cases() {
  std::vector<Case> list;
  TinyModel m;
  list.push_back({"llama_gqa2", m, true});
  m.n_kv_heads = 4, m.head_dim = 80, m.tied = false;
  list.push_back({"llama_mha_d80_untied", m, true});
  m = {};
  m.rope_factors = true, m.rope_base = 500000.0, m.n_kv_heads = 1, m.head_dim = 128;
  list.push_back({"llama_factors_gqa4_d128", m, true});
  m = {};
  m.rope_scale = 4.0;
  list.push_back({"llama_linear", m, true});
  m = {};
  m.arch = "qwen2", m.n_heads = 7, m.n_kv_heads = 1, m.rope_base = 1e6, m.n_ff = 320;
  m.key_bias = 5.0F;
  list.push_back({"qwen2_gqa7", m, true});
  m = {};
  m.arch = "qwen3", m.head_dim = 128, m.n_embd = 320, m.tied = false;
  list.push_back({"qwen3_d128_wide_heads", m, true});
  for (const char* type : {"f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K"}) {
    m = {};
    m.type = type;
    const bool exact = m.type == "f16";
    list.push_back({"llama_" + m.type, m, exact});
    m.arch = "qwen2", m.tied = false;
    list.push_back({"qwen2_" + m.type, m, exact});
  }
  return list;
}

// Tests are shown by name, not by the bytes of their parameter.
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

INSTANTIATE_TEST_SUITE_P(Models, LibllamaAgreement, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// QEVICT_TEST_MODELS: a folder of GGUF files.
TEST(LibllamaRealModel, GivesTheSameLogits) {
  const char* folder = std::getenv("QEVICT_TEST_MODELS");
  if (folder == nullptr) GTEST_SKIP() << "QEVICT_TEST_MODELS names no folder of models";
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    ++n;
    for (bool repack : {true, false}) expect_agreement(entry.path().string(), repack, false);
  }
  if (n == 0) GTEST_SKIP() << "no .gguf file in " << folder;
}

}  // namespace
}  // namespace qevict
