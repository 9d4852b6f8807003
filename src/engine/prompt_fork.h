// Many sessions filled with one prompt, which is computed once for all of them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace qevict {

// Configurations that can share one captured prompt.
struct PromptGroup {
  std::vector<CacheConfig> configs;
  std::vector<std::size_t> indexes;  // theirs in what was grouped
  CaptureOptions capture;            // CaptureOptions::covering() of them
};
// In as few groups as come of joining the first that can take it. name(index), if given, stands
// before an error that concerns one configuration. Errors: those of CaptureOptions::covering().
Result<std::vector<PromptGroup>> group_prompts(
    std::span<const CacheConfig> configs,
    const std::function<std::string(std::size_t index)>& name = {});

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
