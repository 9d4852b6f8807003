#include "engine/uniform_batch.h"

#include <algorithm>

namespace qevict {
namespace {

constexpr std::size_t kRowsAtATime = 4;
constexpr std::size_t kFewestRows = 8;  // below, single rows are multiplied
constexpr TokenId kIdleToken = 0;
constexpr int kIdleLength = 128;  // then a new one: its attention stays cheap

}  // namespace

Status UniformBatch::add_idle(std::size_t index) {
  if (index == idle_.size()) idle_.emplace_back();
  std::unique_ptr<Session>& idle = idle_[index];
  const int longest = std::min(kIdleLength, engine_.ctx_size());
  if (idle == nullptr || idle->n_tokens() >= longest) {
    CacheConfig full;
    full.policy = "full";
    auto session = engine_.create_session(full);
    if (!session) return std::unexpected(session.error());
    const auto logits = (*session)->prefill(std::span(&kIdleToken, 1), longest - 1, {});
    if (!logits) return std::unexpected(logits.error());
    idle = std::move(*session);
  }
  inputs_.push_back({idle.get(), kIdleToken});
  return {};
}

Result<std::span<const Result<std::span<const float>>>> UniformBatch::decode(
    std::span<const BatchInput> inputs) {
  inputs_.assign(inputs.begin(), inputs.end());
  const std::size_t whole = (inputs.size() + kRowsAtATime - 1) / kRowsAtATime * kRowsAtATime;
  const std::size_t rows = std::max(kFewestRows, whole);
  for (std::size_t i = 0; inputs_.size() < rows; ++i) {
    if (Status s = add_idle(i); !s) return std::unexpected(s.error());
  }
  return batch_->decode(inputs_).first(inputs.size());
}

}  // namespace qevict
