#include "model/graph.h"

#include <cstdlib>
#include <set>

#include "ggml-cpu.h"

namespace qevict {
namespace {

constexpr std::size_t kAlignment = 64;

ggml_tensor* rms_norm(ggml_context* c, ggml_tensor* x, ggml_tensor* weight, float eps) {
  return ggml_mul(c, ggml_rms_norm(c, x, eps), weight);
}

ggml_tensor* linear(ggml_context* c, ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x) {
  ggml_tensor* y = ggml_mul_mat(c, weight, x);
  return bias != nullptr ? ggml_add(c, y, bias) : y;
}

// Normalises each head of x [n_heads * head_dim, n].
ggml_tensor* head_norm(ggml_context* c, ggml_tensor* x, ggml_tensor* weight, const HParams& h) {
  if (weight == nullptr) return x;
  const std::int64_t n_heads = x->ne[0] / h.head_dim;
  return rms_norm(c, ggml_reshape_3d(c, x, h.head_dim, n_heads, x->ne[1]), weight, h.rms_eps);
}

ggml_tensor* last_rows(ggml_context* c, ggml_tensor* x, int n) {
  if (n == x->ne[1]) return x;
  const std::size_t skipped = static_cast<std::size_t>(x->ne[1] - n) * x->nb[1];
  return ggml_view_2d(c, x, x->ne[0], n, x->nb[1], skipped);
}

ggml_tensor* feed_forward(ggml_context* c, const LayerWeights& w, ggml_tensor* x) {
  ggml_tensor* up = linear(c, w.up, w.up_bias, x);
  ggml_tensor* gate = linear(c, w.gate, w.gate_bias, x);
  return linear(c, w.down, w.down_bias, ggml_swiglu_split(c, gate, up));
}

}  // namespace

ggml_tensor* add_layer(ggml_context* c, const HParams& h, const LayerWeights& w,
                       ggml_tensor* hidden, int n_rows, SeamCall* call) {
  ggml_tensor* x = rms_norm(c, hidden, w.attn_norm, h.rms_eps);
  ggml_tensor* q = head_norm(c, linear(c, w.q, w.q_bias, x), w.q_norm, h);
  ggml_tensor* k = head_norm(c, linear(c, w.k, w.k_bias, x), w.k_norm, h);
  ggml_tensor* v = linear(c, w.v, w.v_bias, x);
  ggml_tensor* attended = last_rows(c, add_attention(c, q, k, v, call), n_rows);
  ggml_tensor* out = linear(c, w.attn_out, w.attn_out_bias, attended);
  ggml_tensor* middle = ggml_add(c, out, last_rows(c, hidden, n_rows));
  x = rms_norm(c, middle, w.ffn_norm, h.rms_eps);
  return ggml_add(c, feed_forward(c, w, x), middle);
}

ggml_tensor* add_head(ggml_context* c, const HParams& h, const GlobalWeights& w,
                      ggml_tensor* hidden) {
  ggml_tensor* x = rms_norm(c, hidden, w.output_norm, h.rms_eps);
  return linear(c, w.output, w.output_bias, x);
}

ggml_tensor* external_rows(ggml_context* context, std::int64_t width, std::int64_t n_rows,
                           float* data) {
  ggml_tensor* tensor = ggml_new_tensor_2d(context, GGML_TYPE_F32, width, n_rows);
  tensor->data = data;
  return tensor;
}

GraphRunner::GraphRunner(int max_nodes, ggml_threadpool* pool, int n_threads)
    : max_nodes_(max_nodes),
      pool_(pool),
      n_threads_(n_threads),
      // Leaves and nodes each have a description; there are fewer leaves than nodes.
      arena_bytes_(2 * ggml_tensor_overhead() * static_cast<std::size_t>(max_nodes) +
                   ggml_graph_overhead_custom(static_cast<std::size_t>(max_nodes), false)),
      context_(ggml_init({arena_bytes_, nullptr, true})),
      allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {}

GraphRunner::~GraphRunner() = default;

ggml_context* GraphRunner::begin() {
  ggml_reset(context_.get());
  graph_ = nullptr;
  return context_.get();
}

Status GraphRunner::finish(ggml_tensor* output) {
  graph_ = ggml_new_graph_custom(context_.get(), static_cast<std::size_t>(max_nodes_), false);
  ggml_build_forward_expand(graph_, output);
  if (!ggml_gallocr_alloc_graph(allocator_.get(), graph_)) {
    return runtime_error("no memory for the graph's intermediate tensors: use a smaller batch");
  }
  plan_bytes_ = ggml_graph_plan(graph_, n_threads_, pool_).work_size;
  if (plan_bytes_ > work_bytes_) {
    const std::size_t size = (plan_bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    work_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, size)));
    work_bytes_ = work_ ? size : 0;
    if (!work_) return runtime_error("no memory for the graph's scratch: use a smaller batch");
  }
  return {};
}

Status GraphRunner::run() {
  ggml_cplan plan = ggml_graph_plan(graph_, n_threads_, pool_);
  plan.work_data = work_.get();
  if (ggml_graph_compute(graph_, &plan) != GGML_STATUS_SUCCESS) {
    return runtime_error("ggml could not compute the graph: try again");
  }
  return {};
}

void GraphRunner::release() {
  graph_ = nullptr;
  allocator_.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
  work_.reset();
  work_bytes_ = 0;
}

std::size_t GraphRunner::weight_bytes() const {
  std::set<const ggml_tensor*> weights;
  std::size_t bytes = 0;
  for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
    for (const ggml_tensor* source : ggml_graph_node(graph_, i)->src) {
      if (source == nullptr) continue;
      if (source->view_src != nullptr) source = source->view_src;
      // The caller's rows have no buffer.
      if (source->op != GGML_OP_NONE || source->buffer == nullptr) continue;
      if (!weights.insert(source).second) continue;
      bytes += ggml_backend_buffer_get_alloc_size(source->buffer, source);
    }
  }
  return bytes;
}

std::size_t GraphRunner::workspace_bytes() const {
  return arena_bytes_ + ggml_gallocr_get_buffer_size(allocator_.get(), 0) + work_bytes_;
}

}  // namespace qevict
