// Graph blocks that the architectures share. Order and choice of operations are llama.cpp's, so
// that results agree closely; what an architecture lacks is a null weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "model/arch/arch.h"
#include "model/seam.h"
#include "qevict/result.h"

namespace qevict {

// Upper bound of the nodes that add_layer() and add_head() make.
inline constexpr int kNodesPerLayer = 48;
inline constexpr int kNodesOfHead = 8;

// hidden [n_embd, n_tokens] -> [n_embd, n_rows]: the last n_rows rows after the layer.
ggml_tensor* add_layer(ggml_context* context, const HParams& hparams, const LayerWeights& weights,
                       ggml_tensor* hidden, int n_rows, SeamCall* call);

// hidden [n_embd, n] -> logits [n_vocab, n].
ggml_tensor* add_head(ggml_context* context, const HParams& hparams, const GlobalWeights& weights,
                      ggml_tensor* hidden);

// A tensor over the caller's memory.
ggml_tensor* external_rows(ggml_context* context, std::int64_t width, std::int64_t n_rows,
                           float* data);

// One graph that is planned and run again and again: arena for its description, memory for its
// intermediate tensors, and ggml's scratch. Rebuilding reuses all three; they only grow.
class GraphRunner {
 public:
  // max_nodes: of the largest graph that will be built.
  GraphRunner(int max_nodes, ggml_threadpool* pool, int n_threads);
  ~GraphRunner();
  GraphRunner(const GraphRunner&) = delete;
  GraphRunner& operator=(const GraphRunner&) = delete;

  // Empties the arena; tensors of the graph before are gone.
  ggml_context* begin();
  // Lays out everything that `output` needs. Errors: Runtime, out of memory.
  Status finish(ggml_tensor* output);
  // Runs the laid-out graph. Does not allocate.
  Status run();
  std::size_t workspace_bytes() const;
  // Of the weights that the laid-out graph reads, each counted once.
  std::size_t weight_bytes() const;
  // Frees tensors and scratch of the laid-out graph; begin() starts over.
  void release();

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  int max_nodes_;
  ggml_threadpool* pool_;
  int n_threads_;
  std::size_t arena_bytes_;
  ggml_context_ptr context_;
  ggml_gallocr_ptr allocator_;
  ggml_cgraph* graph_ = nullptr;
  std::unique_ptr<std::uint8_t, Free> work_;  // scratch of ggml's operations
  std::size_t work_bytes_ = 0;
  std::size_t plan_bytes_ = 0;
};

}  // namespace qevict
