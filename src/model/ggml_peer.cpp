#include "model/ggml_peer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"
#include "model/backend.h"

namespace qevict {
namespace {

struct ContextDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
};

// A pattern of normal numbers, repeated: generating 100 MB of them would take longer than the test.
void fill(ggml_tensor* tensor, const std::vector<ggml_fp16_t>& pattern) {
  auto* data = static_cast<std::uint8_t*>(tensor->data);
  const std::size_t piece = pattern.size() * sizeof(ggml_fp16_t);
  for (std::size_t at = 0; at < ggml_nbytes(tensor); at += piece) {
    std::memcpy(data + at, pattern.data(), std::min(piece, ggml_nbytes(tensor) - at));
  }
}

class Peer final : public GgmlAttention {
 public:
  Peer(const Shape& shape, std::unique_ptr<ggml_context, ContextDeleter> context)
      : context_(std::move(context)), bytes_(cache_bytes(shape) * shape.n_caches) {
    ggml_context* c = context_.get();
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<ggml_fp16_t> pattern(1 << 16);
    for (ggml_fp16_t& x : pattern) x = ggml_fp32_to_fp16(normal(random));
    const int d = shape.head_dim;
    const int heads = shape.n_kv_heads;
    ggml_tensor* q = ggml_new_tensor_3d(c, GGML_TYPE_F32, d, 1, shape.n_heads);
    for (std::int64_t i = 0; i < ggml_nelements(q); ++i) {
      static_cast<float*>(q->data)[i] = normal(random);
    }
    graph_ = ggml_new_graph_custom(c, graph_size(shape), false);
    for (int i = 0; i < shape.n_caches; ++i) {
      const auto rows = [&]() {
        ggml_tensor* all = ggml_new_tensor_2d(c, GGML_TYPE_F16, d * heads, shape.n_tokens);
        fill(all, pattern);
        return ggml_view_3d(c, all, d, shape.n_tokens, heads, all->nb[1], d * sizeof(ggml_fp16_t),
                            0);
      };
      ggml_tensor* k = rows();
      ggml_tensor* v = rows();
      const float scale = 1.0F / std::sqrt(static_cast<float>(d));
      ggml_build_forward_expand(graph_,
                                ggml_flash_attn_ext(c, q, k, v, nullptr, scale, 0.0F, 0.0F));
    }
    plan_ = ggml_graph_plan(graph_, 1, nullptr);
    work_.resize(plan_.work_size);
    plan_.work_data = work_.data();
  }

  bool run() override { return ggml_graph_compute(graph_, &plan_) == GGML_STATUS_SUCCESS; }
  std::size_t bytes() const override { return bytes_; }

  static std::size_t cache_bytes(const Shape& shape) {
    return sizeof(ggml_fp16_t) * 2 * shape.head_dim * shape.n_kv_heads *
           static_cast<std::size_t>(shape.n_tokens);
  }

  // Attention and two views of each cache.
  static std::size_t graph_size(const Shape& shape) {
    return 4 * static_cast<std::size_t>(shape.n_caches) + 8;
  }

 private:
  std::unique_ptr<ggml_context, ContextDeleter> context_;
  std::size_t bytes_;
  ggml_cgraph* graph_ = nullptr;
  ggml_cplan plan_{};
  std::vector<std::uint8_t> work_;
};

}  // namespace

Result<std::unique_ptr<GgmlAttention>> GgmlAttention::create(const Shape& shape) {
  init_backend();
  const auto n = static_cast<std::size_t>(shape.n_caches);
  // K, V, their views and the result of each cache.
  const std::size_t results = sizeof(float) * shape.n_heads * shape.head_dim;
  const std::size_t bytes =
      n * (Peer::cache_bytes(shape) + results + 5 * 256) + (5 * n + 1) * ggml_tensor_overhead() +
      ggml_graph_overhead_custom(Peer::graph_size(shape), false) + results + (1 << 16);
  std::unique_ptr<ggml_context, ContextDeleter> context(ggml_init({bytes, nullptr, false}));
  if (!context) {
    return runtime_error("out of memory (ggml's caches): choose fewer tokens");
  }
  return std::make_unique<Peer>(shape, std::move(context));
}

}  // namespace qevict
