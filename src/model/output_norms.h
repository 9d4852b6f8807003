// How much a value can contribute to a layer's output: || v W_o[h] ||_1, W_o[h] being the rows of
// the output projection that query head h's result is multiplied with. Its bias plays no part.
//
// The projection is read from the model's file again, because a repacked weight cannot be read
// back, and brought to fp32 one layer at a time: ask layer by layer. Not thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "model/model.h"
#include "qevict/result.h"

namespace qevict {

class GgufFile;

class OutputNorms {
 public:
  // `model` must outlive it. Errors: BadInput for a layer without an output projection.
  static Result<std::unique_ptr<OutputNorms>> create(const Model& model);
  int n_layers() const { return n_layers_; }
  int n_heads() const { return n_heads_; }
  // v [n][head_dim] of the KV head that query head `q_head` reads; norms [n].
  // Errors: Runtime when memory is short.
  Status compute(int layer, int q_head, const float* v, int n, float* norms);

 private:
  OutputNorms() = default;
  Status load(int layer);

  const GgufFile* file_ = nullptr;
  int n_layers_ = 0, n_heads_ = 0, head_dim_ = 0, n_embd_ = 0;
  int layer_ = -1;             // whose projection is in packed_
  std::vector<float> packed_;  // [n_heads][n_embd / lanes][head_dim][lanes]
};

// The same for one head and a projection in memory: w [head_dim][n_out].
void product_l1_norms(const float* v, int n, const float* w, int head_dim, int n_out, float* norms);

}  // namespace qevict
