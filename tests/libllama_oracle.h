// libllama's logits on a file, and how far another implementation's are from them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llama.h"
#include "model/tokenizer.h"

namespace qevict {

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

  std::vector<float> logits(const std::vector<TokenId>& tokens, bool flash) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_batch = params.n_ubatch = 256;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F16;
    std::unique_ptr<llama_context, LlamaDeleter> context(
        llama_init_from_model(model_.get(), params));
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

  // The greedy answer of n tokens and the logits [n][n_vocab] they were drawn from: the prompt in
  // one batch, then token by token. End-of-generation tokens are taken like any other. `given`:
  // decode along these tokens instead of the most likely ones.
  std::vector<float> greedy(const std::vector<TokenId>& prompt, int n, std::vector<TokenId>& answer,
                            ggml_type kv_type = GGML_TYPE_F16, bool flash = false,
                            const std::vector<TokenId>* given = nullptr) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(prompt.size()) + n;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = kv_type;
    std::unique_ptr<llama_context, LlamaDeleter> context(
        llama_init_from_model(model_.get(), params));
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
    std::vector<TokenId> fed = prompt;
    std::vector<float> out;
    answer.clear();
    for (int i = 0; i < n; ++i) {
      if (llama_decode(context.get(),
                       llama_batch_get_one(fed.data(), static_cast<int>(fed.size()))) != 0) {
        return {};
      }
      const float* logits = llama_get_logits_ith(context.get(), -1);
      out.insert(out.end(), logits, logits + n_vocab);
      answer.push_back(given != nullptr ? (*given)[i]
                                        : static_cast<TokenId>(
                                              std::max_element(logits, logits + n_vocab) - logits));
      fed = {answer.back()};
    }
    return out;
  }

 private:
  std::unique_ptr<llama_model, LlamaDeleter> model_;
};

// KL(p || q) of the softmax of two rows of logits, in nats.
inline double kl_divergence(const float* p, const float* q, int n) {
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
  double max_difference = 0.0;  // of a logit
  int n_rows = 0;

  void add(const std::vector<float>& reference, const std::vector<float>& other, int n_vocab) {
    for (std::size_t at = 0; at < reference.size(); at += n_vocab) {
      const double kl = kl_divergence(&reference[at], &other[at], n_vocab);
      mean_kl = (mean_kl * n_rows + kl) / (n_rows + 1);
      ++n_rows;
    }
    for (std::size_t i = 0; i < reference.size(); ++i) {
      max_difference = std::max<double>(max_difference, std::abs(reference[i] - other[i]));
    }
  }
};

// Rows whose first token leads by more than `gap` in the reference, and how many of them lose it.
struct GreedyTokens {
  int clear = 0;
  int wrong = 0;

  void add(const std::vector<float>& reference, const std::vector<float>& ours, int n_vocab,
           double gap) {
    for (std::size_t at = 0; at < reference.size(); at += n_vocab) {
      const auto row = reference.begin() + static_cast<std::ptrdiff_t>(at);
      std::vector<float> top(2);
      std::partial_sort_copy(row, row + n_vocab, top.begin(), top.end(), std::greater<>());
      if (top[0] - top[1] <= gap) continue;
      const auto our_row = ours.begin() + static_cast<std::ptrdiff_t>(at);
      const auto want = std::max_element(row, row + n_vocab) - row;
      ++clear;
      wrong += std::max_element(our_row, our_row + n_vocab) - our_row != want;
    }
  }
};

}  // namespace qevict
