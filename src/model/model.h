// A GGUF model: validated, loaded into ggml buffers, run layer by layer or as one decode graph.
//
// Only model/ includes ggml and llama.cpp headers. Thread safety: a Model is immutable after load
// and may be shared; a Forward belongs to one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "kernels/rope.h"
#include "model/tokenizer.h"
#include "qevict/result.h"

namespace qevict {

struct HParams {
  std::string arch;  // "llama", "qwen2", "qwen3"
  std::string name;  // general.name
  std::string file_type;
  int n_layers = 0, n_embd = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, n_ff = 0, n_vocab = 0;
  int n_ctx_train = 0;
  float rms_eps = 1e-5F;
  RopeSpec rope;  // scaling and frequency factors folded in
  double rope_base = 10000.0;
  std::int64_t n_params = 0;
  std::int64_t weight_bytes = 0;  // tensor bytes in the file
};

// Whether matrices of a type without a fast layout (Q5_0) are kept as one that holds the same
// values (Q8_0, 1.55 times the bytes). Auto: where this CPU has a fast layout for that type (AMX).
enum class WeightRewrite : std::uint8_t { Auto, Always, Never };

struct ModelOptions {
  bool repack = true;  // put weights into the CPU's fast layouts where it has one
  WeightRewrite rewrite = WeightRewrite::Auto;
  bool mmap = true;
  std::function<void(float)> progress;        // 0..1
  const std::atomic<bool>* cancel = nullptr;  // checked between tensors
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> load(const std::string& path, const ModelOptions& options);
  virtual ~Model() = default;
  virtual const HParams& hparams() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const std::string& path() const = 0;
  virtual std::string layout_summary()
      const = 0;  // e.g. "repacked 40 of 170 matrices (CPU_REPACK)"
};

// Runs a model on its own thread pool of n_threads.
class Forward {
 public:
  static Result<std::unique_ptr<Forward>> create(const Model& model, int n_threads);
  virtual ~Forward() = default;

  // hidden [n][n_embd]: embeddings of the tokens.
  virtual Status embed(std::span<const std::int32_t> tokens, float* hidden) = 0;
  // One layer over one block of rows, in place: norm, qkv, attention, output, ffn. With
  // last_rows_only > 0 only the last so many rows of `hidden` are updated (the others' output is
  // not needed: last layer), attention still sees all.
  virtual Status layer(int layer, float* hidden, int n_tokens, Attention& attention,
                       int last_rows_only) = 0;
  // Final norm and output head of one row. logits [n_vocab].
  virtual Status head(const float* hidden_row, float* logits) = 0;
  // One step of n sequences, a token of each, through the whole model in one graph, so that the
  // weights are read once. `attention` is given blocks of n rows, row i for tokens[i].
  // logits [n][n_vocab]. The graphs of one token and of the last larger n are kept: no allocation
  // unless n > 1 changes. Errors: BadInput for a token, Runtime when memory is short.
  virtual Status decode(std::span<const std::int32_t> tokens, Attention& attention,
                        float* logits) = 0;
  Status decode(std::int32_t token, Attention& attention, float* logits) {
    return decode(std::span<const std::int32_t>(&token, 1), attention, logits);
  }
  // Builds the graph of n tokens now, if it is not there, so that neither decode() nor
  // on_all_threads() can fail for want of memory.
  virtual Status plan_decode(int n_tokens) = 0;
  // Calls work(data, ith, nth) on every thread of the pool at once and waits for all of them.
  // Errors: Runtime, as decode().
  using Work = void (*)(void* data, int ith, int nth) noexcept;
  virtual Status on_all_threads(Work work, void* data) = 0;
  // Gives the memory of the last prompt's graphs back; the next layer() allocates it again.
  virtual void release_prompt_workspace() = 0;
  virtual int n_threads() const = 0;
  virtual std::size_t workspace_bytes() const = 0;  // graph buffers held
  // Bytes of the weights that a step reads, in the layouts in use; 0 before a decode graph is
  // built.
  virtual std::size_t weight_bytes() const = 0;
};

// ggml and llama.cpp versions and the CPU features that ggml uses, for --version.
std::string backend_version();
std::string backend_cpu_features();

}  // namespace qevict
