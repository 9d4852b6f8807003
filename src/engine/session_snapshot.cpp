// SessionImpl::prefill() of a captured prompt.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "engine/prompt_snapshot.h"
#include "engine/session.h"

namespace qevict {

Result<std::span<const float>> SessionImpl::prefill(const PromptSnapshot& prompt, int max_new) {
  if (Status s = check_usable(); !s) return std::unexpected(s.error());
  if (cache_->n_tokens() > 0) {
    return bad_input(
        fmt::format("the session holds {} tokens (snapshot): start a new one", cache_->n_tokens()));
  }
  SnapshotReader reader(prompt, *cache_);
  if (Status s = reader.check(*context_.model); !s) return std::unexpected(s.error());
  try {
    if (Status s = cache_->begin_prompt(prompt.n_tokens(), max_new); !s) {
      return std::unexpected(s.error());
    }
    PromptGuard guard(*cache_, attention_);
    for (int layer = 0; layer < cache_->n_layers(); ++layer) {
      const auto input = reader.layer(layer, cache_->value_norms());
      if (!input) return std::unexpected(input.error());
      if (Status s = cache_->finish_prompt_layer(layer, input->rows, input->mass, input->queries);
          !s) {
        return std::unexpected(s.error());
      }
    }
    std::ranges::copy(prompt.logits(), logits_.begin());
    guard.commit();
  } catch (const std::bad_alloc&) {
    return runtime_error(
        fmt::format("out of memory ({} prompt tokens): lower --kv-budget", prompt.n_tokens()));
  }
  return std::span<const float>(logits_);
}

}  // namespace qevict
