// ggml's own attention, for comparisons in benchmarks (not used by the engine).
#pragma once

#include <cstddef>
#include <memory>

#include "qevict/result.h"

namespace qevict {

// ggml_flash_attn_ext as llama.cpp calls it in a decode step: one query token, f16 K and V of
// random numbers in llama.cpp's layout (the KV heads of a token side by side), one thread. Several
// caches of the shape are attended to one after the other, so that they come from memory.
class GgmlAttention {
 public:
  struct Shape {
    int n_heads = 0, n_kv_heads = 0, head_dim = 0;
    int n_tokens = 0;  // of one cache
    int n_caches = 1;
  };
  // Fails when memory is short.
  static Result<std::unique_ptr<GgmlAttention>> create(const Shape& shape);
  virtual ~GgmlAttention() = default;
  // Attends to each cache once; false when ggml refuses.
  virtual bool run() = 0;
  // K and V of all caches.
  virtual std::size_t bytes() const = 0;
};

}  // namespace qevict
