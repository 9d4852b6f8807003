#include "model/output_norms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <numeric>
#include <string>

#include "base/clones.h"
#include "ggml.h"
#include "model/loaded_model.h"

namespace qevict {
namespace {

constexpr std::size_t kOutputs = 16;  // side by side
constexpr int kTokens = 4;            // tokens that share a load of weights
constexpr int kBlock = 64;            // tokens whose values stay in the first-level cache

// Floats of one head: [n_out / kOutputs][head_dim][kOutputs], zeros beyond the last output.
std::size_t packed_size(int head_dim, int n_out) {
  return (n_out + kOutputs - 1) / kOutputs * kOutputs * static_cast<std::size_t>(head_dim);
}

// Adds the absolute outputs of kRows tokens to sums [kRows][kOutputs].
template <int kRows>
QE_INLINE void add_group(const float* v, const float* group, int head_dim, float* sums) {
  float out[kRows][kOutputs] = {};
  for (int d = 0; d < head_dim; ++d) {
    const float* w = group + static_cast<std::size_t>(d) * kOutputs;
    for (int r = 0; r < kRows; ++r) {
      const float x = v[static_cast<std::size_t>(r) * head_dim + d];
      for (std::size_t j = 0; j < kOutputs; ++j) out[r][j] += x * w[j];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (std::size_t j = 0; j < kOutputs; ++j) sums[r * kOutputs + j] += std::fabs(out[r][j]);
  }
}

QE_CLONES void packed_norms(const float* v, int n, const float* packed, int head_dim, int n_out,
                            float* norms) {
  const std::size_t d = static_cast<std::size_t>(head_dim);
  const float* end = packed + packed_size(head_dim, n_out);
  for (int begin = 0; begin < n; begin += kBlock) {
    const int count = std::min(n - begin, kBlock);
    const float* block = v + begin * d;
    float sums[kBlock * kOutputs] = {};
    for (const float* group = packed; group < end; group += kOutputs * d) {
      int i = 0;
      for (; i + kTokens <= count; i += kTokens) {
        add_group<kTokens>(block + i * d, group, head_dim, sums + i * kOutputs);
      }
      for (; i < count; ++i) add_group<1>(block + i * d, group, head_dim, sums + i * kOutputs);
    }
    for (int i = 0; i < count; ++i) {
      const float* lanes = sums + i * kOutputs;
      norms[begin + i] = std::accumulate(lanes, lanes + kOutputs, 0.0F);
    }
  }
}

void to_float(ggml_type type, const void* row, float* out, std::int64_t n) {
  if (type == GGML_TYPE_F32) {
    std::memcpy(out, row, static_cast<std::size_t>(n) * sizeof(float));
  } else {
    ggml_get_type_traits(type)->to_float(row, out, n);
  }
}

std::string tensor_name(int layer) {
  return "blk." + std::to_string(layer) + ".attn_output.weight";
}

}  // namespace

Result<std::unique_ptr<OutputNorms>> OutputNorms::create(const Model& model) {
  const HParams& hp = model.hparams();
  std::unique_ptr<OutputNorms> norms(new OutputNorms());
  norms->file_ = &static_cast<const LoadedModel&>(model).file();
  norms->n_layers_ = hp.n_layers;
  norms->n_heads_ = hp.n_heads;
  norms->head_dim_ = hp.head_dim;
  norms->n_embd_ = hp.n_embd;
  for (int i = 0; i < hp.n_layers; ++i) {
    if (norms->file_->find_tensor(tensor_name(i)) == nullptr) {
      return norms->file_->error("tensor " + quoted(tensor_name(i)) + " is missing");
    }
  }
  return norms;
}

Status OutputNorms::load(int layer) {
  const GgufTensor& tensor = *file_->find_tensor(tensor_name(layer));
  const auto type = static_cast<ggml_type>(tensor.type);
  const std::size_t row_bytes = ggml_row_size(type, tensor.shape[0]);
  const auto* bytes = file_->data().data() + tensor.offset;
  const std::size_t n_in = static_cast<std::size_t>(n_heads_) * head_dim_;
  const std::size_t head_size = packed_size(head_dim_, n_embd_);
  layer_ = -1;
  try {
    packed_.resize(n_heads_ * head_size);
    std::vector<float> rows(n_in * kOutputs);  // outputs j .. j + kOutputs
    std::ranges::fill(packed_, 0.0F);
    for (std::size_t j = 0; j < static_cast<std::size_t>(n_embd_); j += kOutputs) {
      const std::size_t n_rows = std::min(kOutputs, n_embd_ - j);
      for (std::size_t r = 0; r < n_rows; ++r) {
        const void* row = bytes + (j + r) * row_bytes;
        to_float(type, row, rows.data() + r * n_in, tensor.shape[0]);
      }
      for (std::size_t h = 0; h < static_cast<std::size_t>(n_heads_); ++h) {
        float* group = packed_.data() + h * head_size + j * head_dim_;
        for (std::size_t r = 0; r < n_rows; ++r) {
          for (int d = 0; d < head_dim_; ++d) {
            group[d * kOutputs + r] = rows[r * n_in + h * head_dim_ + d];
          }
        }
      }
    }
  } catch (const std::bad_alloc&) {
    return runtime_error("no memory for a layer's output projection (value norms): free memory");
  }
  layer_ = layer;
  return {};
}

Status OutputNorms::compute(int layer, int q_head, const float* v, int n, float* norms) {
  if (layer != layer_) {
    if (Status ok = load(layer); !ok) return ok;
  }
  const float* packed = packed_.data() + q_head * packed_size(head_dim_, n_embd_);
  packed_norms(v, n, packed, head_dim_, n_embd_, norms);
  return {};
}

void product_l1_norms(const float* v, int n, const float* w, int head_dim, int n_out,
                      float* norms) {
  std::vector<float> packed(packed_size(head_dim, n_out), 0.0F);
  for (int d = 0; d < head_dim; ++d) {
    for (std::size_t j = 0; j < static_cast<std::size_t>(n_out); ++j) {
      packed[j / kOutputs * kOutputs * head_dim + d * kOutputs + j % kOutputs] = *w++;
    }
  }
  packed_norms(v, n, packed.data(), head_dim, n_out, norms);
}

}  // namespace qevict
