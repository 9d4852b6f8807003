#include "model/seam.h"

#include <array>
#include <cstdint>

namespace qevict {
namespace {

void run_prepare(ggml_tensor* node, int ith, int nth, void* userdata) {
  const auto* call = static_cast<const SeamCall*>(userdata);
  QkvBlock block;
  block.q = static_cast<const float*>(node->src[0]->data);
  block.k = static_cast<const float*>(node->src[1]->data);
  block.v = static_cast<const float*>(node->src[2]->data);
  block.n_tokens = call->n_tokens;
  (*call->attention)->prepare(call->layer, block, ith, nth);
}

void run_attend(ggml_tensor* node, int ith, int nth, void* userdata) {
  const auto* call = static_cast<const SeamCall*>(userdata);
  (*call->attention)->attend(call->layer, static_cast<float*>(node->data), ith, nth);
}

}  // namespace

ggml_tensor* add_attention(ggml_context* context, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v,
                           SeamCall* call) {
  QE_CHECK(ggml_is_contiguous(q) && ggml_is_contiguous(k) && ggml_is_contiguous(v));
  std::array<ggml_tensor*, 3> inputs{q, k, v};
  // The node's own value is unused: it stands for the order of the two calls.
  ggml_tensor* prepared = ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, inputs.data(),
                                         inputs.size(), run_prepare, GGML_N_TASKS_MAX, call);
  // q, k and v are arguments again, so that their memory is not reused before attend() is done.
  std::array<ggml_tensor*, 4> all{prepared, q, k, v};
  const std::int64_t width = ggml_nelements(q) / call->n_tokens;
  return ggml_custom_4d(context, GGML_TYPE_F32, width, call->n_tokens, 1, 1, all.data(), all.size(),
                        run_attend, GGML_N_TASKS_MAX, call);
}

}  // namespace qevict
