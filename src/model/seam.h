// The seam between a ggml graph and our attention: two custom operations a layer.
//
// ggml runs the nodes of a graph one after the other, each on all threads of its pool, with a
// barrier between two nodes. The second node takes the first as an argument, so prepare() of a
// layer is done on every thread before attend() begins.
#pragma once

#include "attention/attention.h"
#include "ggml.h"

namespace qevict {

// What the nodes of one layer know. Must live as long as the graph, at the same address.
struct SeamCall {
  Attention* const* attention = nullptr;  // read at each run, so that a graph serves many sequences
  int layer = 0;
  int n_tokens = 0;
};

// q [n_heads * head_dim, n_tokens], k and v [n_kv_heads * head_dim, n_tokens], fp32 and contiguous
// (ggml order: the first dimension is the inner one). Returns [n_heads * head_dim, n_tokens].
ggml_tensor* add_attention(ggml_context* context, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v,
                           SeamCall* call);

}  // namespace qevict
