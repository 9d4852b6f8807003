// One prompt through the model, layer by layer: what reading it into a session and capturing it for
// many sessions have in common.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "attention/tiered_attention.h"
#include "engine/engine.h"

namespace qevict {

// What a session needs of its engine; all outlive it.
struct SessionContext {
  const Model* model = nullptr;
  Forward* forward = nullptr;
  int batch_size = 512;
  int ctx_size = 0;
};

// Whether every key and value that `attention` was given since the last call fits into fp16.
Status check_stored(TieredAttention& attention);
Status check_finite(std::span<const float> logits);

// Computes all layers for `tokens`, which follow what the attention's cache holds; the cache must
// be between begin_prompt() and the prompt's end. After each layer's attention on_layer is called,
// which hands the layer to whoever keeps it. last_hidden [n_embd]: the last token's state.
// workspace_bytes: hidden states and graphs. Errors: on_layer's, Interrupted, Runtime.
Status run_prompt_layers(const SessionContext& context, TieredAttention& attention,
                         std::span<const TokenId> tokens, const GenerateOptions& options,
                         const std::function<Status(int layer)>& on_layer, float* last_hidden,
                         std::size_t& workspace_bytes);

}  // namespace qevict
