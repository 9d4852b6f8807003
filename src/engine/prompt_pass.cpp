#include "engine/prompt_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace qevict {

Status check_stored(TieredAttention& attention) {
  const int layer = attention.take_nonfinite_layer();
  if (layer < 0) return {};
  return runtime_error(fmt::format(
      "the model computed keys or values that fp16 cannot hold (layer {}): the file's weights are "
      "damaged or need another precision; fetch it again",
      layer));
}

Status check_finite(std::span<const float> logits) {
  bool finite = true;  // no early return, so that the loop is vectorised
  for (const float x : logits) finite &= std::fabs(x) <= std::numeric_limits<float>::max();
  if (finite) return {};
  return runtime_error(
      "the model computed a value that is not a number (logits): the file's weights are damaged; "
      "fetch it again");
}

Status run_prompt_layers(const SessionContext& context, TieredAttention& attention,
                         std::span<const TokenId> tokens, const GenerateOptions& options,
                         const std::function<Status(int layer)>& on_layer, float* last_hidden,
                         std::size_t& workspace_bytes) {
  const HParams& hp = context.model->hparams();
  const int n = static_cast<int>(tokens.size());
  const int block = context.batch_size;
  const int blocks = (n + block - 1) / block;
  AlignedBuffer<float> hidden;
  hidden.resize_exactly(static_cast<std::size_t>(n) * hp.n_embd);
  if (Status s = context.forward->embed(tokens, hidden.data()); !s) return s;
  attention.begin_prompt(n, block);
  for (int layer = 0; layer < hp.n_layers; ++layer) {
    attention.begin_layer(layer);
    for (int b = 0; b < blocks; ++b) {
      if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
        return interrupted("interrupted while reading the prompt (Ctrl-C): run it again");
      }
      const int first = b * block;
      const int count = std::min(block, n - first);
      attention.set_block(first, count);
      // Of the last layer only the last token's output is ever used.
      const int last_rows = layer + 1 == hp.n_layers ? 1 : 0;
      float* rows = hidden.data() + static_cast<std::size_t>(first) * hp.n_embd;
      if (Status s = context.forward->layer(layer, rows, count, attention, last_rows); !s) return s;
      if (Status s = check_stored(attention); !s) return s;
      if (options.prefill_progress) {
        options.prefill_progress(layer * blocks + b + 1, hp.n_layers * blocks);
      }
    }
    if (Status s = on_layer(layer); !s) return s;
  }
  workspace_bytes = hidden.bytes() + context.forward->workspace_bytes();
  std::copy_n(hidden.data() + static_cast<std::size_t>(n - 1) * hp.n_embd, hp.n_embd, last_hidden);
  return {};
}

}  // namespace qevict
