// What the model sees of attention: two calls a layer, made by all threads of ggml's pool.
//
// prepare() of a layer is finished by every thread before attend() of that layer begins (they are
// two nodes of one graph). Both are noexcept, do not allocate and give the same bits for any nth.
#pragma once

#include "base/check.h"

namespace qevict {

// Projections of one block of tokens, before RoPE, after bias and q/k norms.
// Token t, head h, channel d is at data[t * stride + h * head_dim + d].
struct QkvBlock {
  const float* q = nullptr;  // stride n_heads * head_dim
  const float* k = nullptr;  // stride n_kv_heads * head_dim
  const float* v = nullptr;
  int n_tokens = 0;
};

class Attention {
 public:
  virtual ~Attention() = default;
  // Applies RoPE at the block's positions and stores K and V.
  virtual void prepare(int layer, const QkvBlock& qkv, int ith, int nth) noexcept = 0;
  // out [n_tokens][n_heads * head_dim]: attention of the tokens that prepare() was given.
  virtual void attend(int layer, float* out, int ith, int nth) noexcept = 0;
};

}  // namespace qevict
