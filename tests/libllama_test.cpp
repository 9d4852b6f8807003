// Logits of Forward against libllama's on the same file: another implementation of attention, KV
// cache and RoPE, the same matrices.
//
// Tolerances. libllama without flash attention multiplies fp16 keys with queries rounded to fp16 and
// fp16 values with probabilities rounded to fp16; the reference here keeps both in double. That
// difference, and no other, is what the bounds on mean KL allow for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "gguf_writer.h"
#include "llama.h"
#include "model/model.h"
#include "reference_attention.h"

namespace qevict {
namespace {

constexpr int kPrompts = 3;
constexpr int kTokens = 64;
constexpr int kThreads = 2;

struct LlamaDeleter {
  void operator()(llama_model* m) const { llama_model_free(m); }
  void operator()(llama_context* c) const { llama_free(c); }
};

// libllama's logits [kTokens][n_vocab] of one prompt, in one batch.
class Libllama {
 public:
  Libllama(const std::string& path, bool repack) {
    llama_model_params params = llama_model_default_params();
    params.use_extra_bufts = repack;
    params.n_gpu_layers = 0;
    model_.reset(llama_model_load_from_file(path.c_str(), params));
  }
  bool ok() const { return model_ != nullptr; }

  std::vector<float> logits(std::vector<TokenId> tokens) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = 256;
    params.n_threads = params.n_threads_batch = kThreads;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F16;
    std::unique_ptr<llama_context, LlamaDeleter> context(llama_init_from_model(model_.get(), params));
    llama_batch batch = llama_batch_init(static_cast<int>(tokens.size()), 0, 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      batch.token[i] = tokens[i];
      batch.pos[i] = static_cast<int>(i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    batch.n_tokens = static_cast<int>(tokens.size());
    std::vector<float> out;
    if (llama_decode(context.get(), batch) == 0) {
      const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const float* row = llama_get_logits_ith(context.get(), static_cast<int>(i));
        out.insert(out.end(), row, row + n_vocab);
      }
    }
    llama_batch_free(batch);
    return out;
  }

 private:
  std::unique_ptr<llama_model, LlamaDeleter> model_;
};

std::vector<TokenId> prompt(int index, int n_vocab) {
  std::vector<TokenId> tokens;
  std::uint32_t state = 12345U + 977U * static_cast<std::uint32_t>(index);
  for (int i = 0; i < kTokens; ++i) {
    state = state * 1664525U + 1013904223U;
    tokens.push_back(static_cast<TokenId>((state >> 8) % static_cast<std::uint32_t>(n_vocab)));
  }
  return tokens;
}

// KL(p || q) of the softmax of two rows of logits, in nats.
double kl_divergence(const float* p, const float* q, int n) {
  const auto log_sum = [n](const float* x) {
    const double top = *std::max_element(x, x + n);
    double sum = 0.0;
    for (int i = 0; i < n; ++i) sum += std::exp(x[i] - top);
    return top + std::log(sum);
  };
  const double lp = log_sum(p);
  const double lq = log_sum(q);
  double kl = 0.0;
  for (int i = 0; i < n; ++i) kl += std::exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
  return std::max(kl, 0.0);
}

struct Agreement {
  double mean_kl = 0.0;
  double max_kl = 0.0;
  double max_difference = 0.0;
  int wrong_tokens = 0;  // another first token although libllama's leads by more than 0.1
  int clear_tokens = 0;
};

void compare_row(const float* reference, const float* ours, int n, Agreement& total) {
  std::vector<int> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + 2, order.end(),
                    [&](int a, int b) { return reference[a] > reference[b]; });
  if (reference[order[0]] - reference[order[1]] > 0.1F) {
    ++total.clear_tokens;
    total.wrong_tokens += std::max_element(ours, ours + n) - ours != order[0];
  }
  const double kl = kl_divergence(reference, ours, n);
  total.mean_kl += kl;
  total.max_kl = std::max(total.max_kl, kl);
  for (int i = 0; i < n; ++i) {
    total.max_difference = std::max<double>(total.max_difference, std::abs(reference[i] - ours[i]));
  }
}

// First half of the prompt through layer() in one block, the rest token by token through decode(); a
// second pass with the whole prompt as one block.
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

Agreement compare(const std::string& path, bool repack, int n_block) {
  Agreement total;
  ModelOptions options;
  options.repack = repack;
  auto model = Model::load(path, options);
  EXPECT_TRUE(model) << model.error().message;
  Libllama llama(path, repack);
  EXPECT_TRUE(llama.ok());
  if (!model || !llama.ok()) return total;
  auto forward = Forward::create(**model, kThreads);
  EXPECT_TRUE(forward) << forward.error().message;
  const int n_vocab = (*model)->hparams().n_vocab;
  int rows = 0;
  for (int p = 0; p < kPrompts; ++p) {
    const std::vector<TokenId> tokens = prompt(p, n_vocab);
    const std::vector<float> reference = llama.logits(tokens);
    const auto ours = our_logits(**model, **forward, tokens, n_block);
    EXPECT_TRUE(ours) << ours.error().message;
    EXPECT_EQ(reference.size(), tokens.size() * n_vocab);
    if (!ours || reference.size() != ours->size()) return total;
    for (int i = 0; i < kTokens; ++i, ++rows) {
      const std::size_t at = std::size_t(i) * n_vocab;
      compare_row(&reference[at], &(*ours)[at], n_vocab, total);
    }
  }
  total.mean_kl /= rows;
  std::printf("  %s repack=%d block=%d: %s, KL mean %.2e max %.2e, logits %.2e, clear %d of %d\n",
              std::filesystem::path(path).filename().c_str(), repack, n_block,
              (*model)->layout_summary().c_str(), total.mean_kl, total.max_kl, total.max_difference,
              total.clear_tokens, rows);
  return total;
}

void expect_agreement(const std::string& path, bool repack, double max_mean_kl) {
  for (int n_block : {kTokens / 2, kTokens}) {
    const Agreement result = compare(path, repack, n_block);
    EXPECT_LT(result.mean_kl, max_mean_kl) << path << " repack " << repack << " block " << n_block;
    EXPECT_EQ(result.wrong_tokens, 0) << path << " repack " << repack << " block " << n_block;
    EXPECT_GT(result.clear_tokens, kTokens) << "the comparison says little about " << path;
  }
}

struct Case {
  std::string name;
  TinyModel model;
  double max_mean_kl;
};

class Libllama_Agreement : public testing::TestWithParam<Case> {};

TEST_P(Libllama_Agreement, GivesTheSameLogits) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("qevict_libllama_" + GetParam().name + ".gguf");
  ASSERT_EQ(write_tiny_model(path.string(), GetParam().model), "");
  for (bool repack : {false, true}) expect_agreement(path.string(), repack, GetParam().max_mean_kl);
  std::filesystem::remove(path);
}

constexpr double kF32 = 2e-5;
// int8 activations: a last-bit difference in attention moves whole rounding steps.
constexpr double kQuantized = 3e-4;

std::vector<Case> cases() {
  std::vector<Case> list;
  TinyModel m;
  list.push_back({"llama_gqa2", m, kF32});
  m.n_kv_heads = 4, m.head_dim = 80, m.tied = false;
  list.push_back({"llama_mha_d80_untied", m, kF32});
  m = {};
  m.rope_factors = true, m.rope_base = 500000.0, m.n_kv_heads = 1, m.head_dim = 128;
  list.push_back({"llama_factors_gqa4_d128", m, kF32});
  m = {};
  m.rope_scale = 4.0;
  list.push_back({"llama_linear", m, kF32});
  m = {};
  m.arch = "qwen2", m.n_heads = 7, m.n_kv_heads = 1, m.rope_base = 1e6, m.n_ff = 320;
  m.key_bias = 5.0F;
  list.push_back({"qwen2_gqa7", m, kF32});
  m = {};
  m.arch = "qwen3", m.head_dim = 128, m.n_embd = 320, m.tied = false;
  list.push_back({"qwen3_d128_wide_heads", m, kF32});
  for (const char* type : {"f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K"}) {
    m = {};
    m.type = type;
    list.push_back({"llama_" + std::string(type), m, kQuantized});
    m.arch = "qwen2", m.tied = false;
    list.push_back({"qwen2_" + std::string(type), m, kQuantized});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Models, Libllama_Agreement, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// QEVICT_TEST_MODELS: a folder of GGUF files.
TEST(Libllama_RealModel, GivesTheSameLogits) {
  const char* folder = std::getenv("QEVICT_TEST_MODELS");
  if (folder == nullptr) GTEST_SKIP() << "QEVICT_TEST_MODELS names no folder of models";
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    ++n;
    for (bool repack : {true, false}) expect_agreement(entry.path().string(), repack, 3e-4);
  }
  if (n == 0) GTEST_SKIP() << "no .gguf file in " << folder;
}

}  // namespace
}  // namespace qevict
