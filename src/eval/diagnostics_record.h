// What diagnostics compare: the full cache's attention, and a policy's events with the mass that
// its Quantized windows got. Both are recorded while a session decodes along given tokens.
//
// Memory: AttentionRecord holds a float for each layer, query head, decode step and position;
// PolicyRecord what its events list.
#pragma once

#include <vector>

#include "attention/mass_observer.h"
#include "engine/engine.h"
#include "eval/diagnostics.h"

namespace qevict {

struct AttentionRecord {
  int n_layers = 0, n_heads = 0, n_prompt = 0, n_steps = 0;
  std::vector<double> prompt;  // sums over the prompt's rows: [n_layers][n_heads][n_prompt]
  std::vector<float> steps;    // [n_layers][n_heads][n_steps][n_positions()]

  int n_positions() const { return n_prompt + n_steps; }
  std::span<const double> prompt_mass(int layer, int head) const;
  StepAttention step_attention(int layer, int head) const;
};

// Of a session of the full cache with windows of one token and no sinks.
class AttentionRecorder final : public MassObserver {
 public:
  AttentionRecorder(int n_layers, int n_heads, int n_prompt, int n_steps);
  // What follows belongs to the next decode step.
  void begin_step() { ++step_; }
  AttentionRecord& record() { return record_; }

  void on_windows(int layer, int head, std::span<const WindowId> ids,
                  std::span<const float> mass) noexcept override;
  void on_run(int layer, int head, TokenPos first, int width,
              std::span<const float> mass) noexcept override;

 private:
  void add(int layer, int head, TokenPos position, float mass) noexcept;

  AttentionRecord record_;
  int step_ = 0;  // 0: the prompt
};

// One routing event of one unit: a layer, or a KV head of one, and the policy's own attention by
// query head of the unit. Its steps are those until the next event, or the end.
struct UnitEvent {
  int step = 0;
  TokenPos n_tokens = 0, local_begin = 0;
  std::vector<WindowId> full, quantized;  // ascending
  std::vector<double> quantized_mass;     // since the start: [heads][quantized]
  std::vector<float> step_mass;           // of Quantized windows: [steps][heads][quantized]
  std::vector<float> step_local;          // of all from local_begin on: [steps][heads]
};

struct PolicyRecord {
  int n_layers = 0, n_heads = 0, units_per_layer = 1;
  int n_sink = 0, window = 1;
  std::int64_t full_quota = 0;  // windows that Full may hold
  bool quantized_accessible = true;
  bool has_full_tier = true;                  // false: a ladder, whose windows are all quantised
  std::vector<std::vector<UnitEvent>> units;  // [n_layers * units_per_layer][events]
  CacheCounters counters;

  // Whether any event left a window there.
  bool has_quantized() const;
  int heads_per_unit() const { return n_heads / units_per_layer; }
  const std::vector<UnitEvent>& unit(int layer, int u) const {
    return units[static_cast<std::size_t>(layer) * units_per_layer + u];
  }
};

// Of any session; gets its trace, and its mass from the first decode step on.
class PolicyRecorder final : public MassObserver {
 public:
  // A prompt's own attention is the full cache's, whatever the policy: its mass is `full`'s.
  PolicyRecorder(const KvCache& cache, const AttentionRecord& full);
  // What follows belongs to the next decode step.
  void begin_step();
  void on_event(const LayerEvent& event);
  // After the last step; reads what the cache knows itself.
  PolicyRecord finish(const KvCache& cache);

  void on_windows(int layer, int head, std::span<const WindowId> ids,
                  std::span<const float> mass) noexcept override;
  void on_run(int layer, int head, TokenPos first, int width,
              std::span<const float> mass) noexcept override;

 private:
  // What a unit's last event left, while its steps are recorded.
  struct Open {
    std::vector<std::int32_t> slot;  // of a window in `quantized`, or -1: [n_windows_]
    int n_evicted = 0;               // so far
  };
  std::size_t unit_of(int layer, int head) const {
    return static_cast<std::size_t>(layer) * record_.units_per_layer +
           head / record_.heads_per_unit();
  }
  double* mass_of(int layer, int head) {
    return mass_.data() + (static_cast<std::size_t>(layer) * record_.n_heads + head) * n_windows_;
  }

  PolicyRecord record_;
  int n_windows_ = 0;
  std::vector<double> mass_;  // since the start: [n_layers][n_heads][n_windows_]
  std::vector<Open> open_;    // [units]
};

}  // namespace qevict
