#include "engine/prompt_fork.h"

#include <chrono>
#include <utility>

namespace qevict {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sessions that share a captured prompt.
struct Group {
  std::vector<CacheConfig> configs;
  std::vector<std::size_t> indexes;
  CaptureOptions capture;
};

std::unexpected<Error> named(const ForkOptions& options, std::size_t index, Error error) {
  if (options.name) error.message = options.name(index) + ": " + error.message;
  return std::unexpected(std::move(error));
}

// Joins the first group that can take the configuration, or makes one.
Status add_to_group(const CacheConfig& config, std::size_t index, std::vector<Group>& groups) {
  for (Group& group : groups) {
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

Result<std::vector<ForkedSession>> fork_prompt(Engine& engine, std::span<const TokenId> prompt,
                                               std::span<const CacheConfig> configs,
                                               const ForkOptions& options) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (Status s = add_to_group(configs[i], i, groups); !s) return named(options, i, s.error());
  }
  std::vector<ForkedSession> sessions(configs.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Group& group = groups[g];
    const Clock::time_point start = Clock::now();
    group.capture.cancel = options.cancel;
    if (options.progress) {
      group.capture.progress = [&, g](int done, int total) {
        const double part = static_cast<double>(g) + static_cast<double>(done) / total;
        options.progress(part / static_cast<double>(groups.size()));
      };
    }
    const auto captured = engine.capture_prompt(prompt, group.capture);
    if (!captured) return std::unexpected(captured.error());
    const double share = seconds_since(start) / static_cast<double>(group.indexes.size());
    for (const std::size_t i : group.indexes) {
      const Clock::time_point filling = Clock::now();
      auto session = engine.create_session(configs[i]);
      if (!session) return named(options, i, session.error());
      const auto logits = (*session)->prefill(**captured, options.max_new);
      if (!logits) return named(options, i, logits.error());
      sessions[i] = {std::move(*session), *logits, share + seconds_since(filling)};
    }
  }
  return sessions;
}

}  // namespace qevict
