// Many sessions filled with one prompt, which is computed once for all of them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace qevict {

struct ForkedSession {
  std::unique_ptr<Session> session;
  std::span<const float> logits;  // after the prompt; valid until the session's next call
  double seconds = 0.0;           // its share of computing the prompt, and filling it
};

struct ForkOptions {
  int max_new = 0;                       // tokens that may follow, further prompts included
  std::function<void(double)> progress;  // 0..1
  const std::atomic<bool>* cancel = nullptr;
  // Stands before an error that concerns one session.
  std::function<std::string(std::size_t index)> name;
};

// A session for each configuration, in their order. Configurations that cannot share one captured
// prompt (CaptureOptions::covering) are served group by group; only one group's prompt is held at a
// time.
Result<std::vector<ForkedSession>> fork_prompt(Engine& engine, std::span<const TokenId> prompt,
                                               std::span<const CacheConfig> configs,
                                               const ForkOptions& options);

}  // namespace qevict
