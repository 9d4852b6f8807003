#include "engine/prompt_fork.h"

#include <chrono>
#include <utility>

namespace qevict {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

using Name = std::function<std::string(std::size_t index)>;

std::unexpected<Error> named(const Name& name, std::size_t index, Error error) {
  if (name) error.message = name(index) + ": " + error.message;
  return std::unexpected(std::move(error));
}

// Joins the first group that can take the configuration, or makes one.
Status add_to_group(const CacheConfig& config, std::size_t index,
                    std::vector<PromptGroup>& groups) {
  for (PromptGroup& group : groups) {
    group.configs.push_back(config);
    auto capture = CaptureOptions::covering(group.configs);
    if (capture) {
      group.capture = std::move(*capture);
      group.indexes.push_back(index);
      return {};
    }
    group.configs.pop_back();
  }
  auto capture = CaptureOptions::covering(std::span(&config, 1));
  if (!capture) return std::unexpected(capture.error());
  groups.push_back({{config}, {index}, std::move(*capture)});
  return {};
}

}  // namespace

Result<std::vector<PromptGroup>> group_prompts(std::span<const CacheConfig> configs,
                                               const Name& name) {
  std::vector<PromptGroup> groups;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (Status s = add_to_group(configs[i], i, groups); !s) return named(name, i, s.error());
  }
  return groups;
}

Result<std::vector<ForkedSession>> fork_prompt(Engine& engine, std::span<const TokenId> prompt,
                                               std::span<const CacheConfig> configs,
                                               const ForkOptions& options) {
  auto groups = group_prompts(configs, options.name);
  if (!groups) return std::unexpected(groups.error());
  std::vector<ForkedSession> sessions(configs.size());
  for (std::size_t g = 0; g < groups->size(); ++g) {
    PromptGroup& group = (*groups)[g];
    const Clock::time_point start = Clock::now();
    group.capture.cancel = options.cancel;
    if (options.progress) {
      group.capture.progress = [&, g](int done, int total) {
        const double part = static_cast<double>(g) + static_cast<double>(done) / total;
        options.progress(part / static_cast<double>(groups->size()));
      };
    }
    const auto captured = engine.capture_prompt(prompt, group.capture);
    if (!captured) return std::unexpected(captured.error());
    const double share = seconds_since(start) / static_cast<double>(group.indexes.size());
    for (const std::size_t i : group.indexes) {
      const Clock::time_point filling = Clock::now();
      auto session = engine.create_session(configs[i]);
      if (!session) return named(options.name, i, session.error());
      const auto logits = (*session)->prefill(**captured, options.max_new);
      if (!logits) return named(options.name, i, logits.error());
      sessions[i] = {std::move(*session), *logits, share + seconds_since(filling)};
    }
  }
  return sessions;
}

}  // namespace qevict
