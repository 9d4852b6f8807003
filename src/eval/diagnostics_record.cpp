#include "eval/diagnostics_record.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/math.h"

namespace qevict {

std::span<const double> AttentionRecord::prompt_mass(int layer, int head) const {
  const std::size_t at = static_cast<std::size_t>(layer) * n_heads + head;
  return {prompt.data() + at * n_prompt, static_cast<std::size_t>(n_prompt)};
}

StepAttention AttentionRecord::step_attention(int layer, int head) const {
  const std::size_t at = static_cast<std::size_t>(layer) * n_heads + head;
  return {steps.data() + at * n_steps * n_positions(), n_steps, n_positions()};
}

AttentionRecorder::AttentionRecorder(int n_layers, int n_heads, int n_prompt, int n_steps) {
  record_ = {n_layers, n_heads, n_prompt, n_steps, {}, {}};
  const std::size_t heads = static_cast<std::size_t>(n_layers) * n_heads;
  record_.prompt.resize(heads * n_prompt);
  record_.steps.resize(heads * n_steps * record_.n_positions());
}

void AttentionRecorder::add(int layer, int head, TokenPos position, float mass) noexcept {
  const std::size_t at = static_cast<std::size_t>(layer) * record_.n_heads + head;
  if (step_ == 0) {
    record_.prompt[at * record_.n_prompt + position] += mass;
  } else {
    const std::size_t row = at * record_.n_steps + (step_ - 1);
    record_.steps[row * record_.n_positions() + position] = mass;
  }
}

void AttentionRecorder::on_windows(int layer, int head, std::span<const WindowId> ids,
                                   std::span<const float> mass) noexcept {
  for (std::size_t i = 0; i < ids.size(); ++i) add(layer, head, ids[i], mass[i]);
}

void AttentionRecorder::on_run(int layer, int head, TokenPos first, int width,
                               std::span<const float> mass) noexcept {
  QE_DCHECK(width == 1);
  for (std::size_t i = 0; i < mass.size(); ++i) {
    add(layer, head, first + static_cast<TokenPos>(i), mass[i]);
  }
}

bool PolicyRecord::has_quantized() const {
  for (const std::vector<UnitEvent>& events : units) {
    for (const UnitEvent& event : events) {
      if (!event.quantized.empty()) return true;
    }
  }
  return false;
}

PolicyRecorder::PolicyRecorder(const KvCache& cache, const AttentionRecord& full) {
  record_.n_layers = cache.n_layers();
  record_.n_heads = cache.geometry().n_heads;
  record_.units_per_layer = cache.units_per_layer();
  record_.n_sink = cache.config().n_sink;
  record_.window = cache.geometry().window;
  record_.quantized_accessible = cache.config().quantized_accessible;
  record_.has_full_tier = !cache.ladder();
  record_.units.resize(static_cast<std::size_t>(record_.n_layers) * record_.units_per_layer);
  n_windows_ = ceil_div(std::max(0, full.n_positions() - record_.n_sink), record_.window);
  mass_.resize(static_cast<std::size_t>(record_.n_layers) * record_.n_heads * n_windows_);
  for (int layer = 0; layer < record_.n_layers; ++layer) {
    for (int h = 0; h < record_.n_heads; ++h) {
      const std::span<const double> mass = full.prompt_mass(layer, h);
      for (int i = record_.n_sink; i < full.n_prompt; ++i) {
        mass_of(layer, h)[(i - record_.n_sink) / record_.window] += mass[i];
      }
    }
  }
  open_.resize(record_.units.size());
  for (Open& open : open_) open.slot.resize(static_cast<std::size_t>(n_windows_), -1);
}

void PolicyRecorder::begin_step() {
  for (std::vector<UnitEvent>& events : record_.units) {
    if (events.empty()) continue;
    UnitEvent& event = events.back();
    event.step_mass.resize(event.step_mass.size() + event.quantized_mass.size());
    event.step_local.resize(event.step_local.size() + record_.heads_per_unit());
  }
}

void PolicyRecorder::on_windows(int layer, int head, std::span<const WindowId> ids,
                                std::span<const float> mass) noexcept {
  double* sums = mass_of(layer, head);
  for (std::size_t i = 0; i < ids.size(); ++i) sums[ids[i]] += mass[i];
  const std::size_t unit = unit_of(layer, head);
  if (record_.units[unit].empty()) return;
  UnitEvent& event = record_.units[unit].back();
  const std::size_t n = event.quantized.size();
  const std::size_t heads_left = record_.heads_per_unit() - head % record_.heads_per_unit();
  float* row = event.step_mass.data() + event.step_mass.size() - heads_left * n;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int32_t slot = open_[unit].slot[ids[i]];
    if (slot >= 0) row[slot] = mass[i];
  }
}

void PolicyRecorder::on_run(int layer, int head, TokenPos first, int width,
                            std::span<const float> mass) noexcept {
  double* sums = mass_of(layer, head);
  for (std::size_t i = 0; i < mass.size(); ++i) {
    const int position = first + static_cast<int>(i) * width - record_.n_sink;
    if (position >= 0) sums[position / record_.window] += mass[i];
  }
  std::vector<UnitEvent>& events = record_.units[unit_of(layer, head)];
  if (events.empty() || first < events.back().local_begin) return;
  std::vector<float>& local = events.back().step_local;
  const int heads_left = record_.heads_per_unit() - head % record_.heads_per_unit();
  local[local.size() - heads_left] += std::accumulate(mass.begin(), mass.end(), 0.0F);
}

void PolicyRecorder::on_event(const LayerEvent& e) {
  const std::size_t unit =
      static_cast<std::size_t>(e.layer) * record_.units_per_layer + std::max(e.head, 0);
  Open& open = open_[unit];
  UnitEvent event;
  event.step = e.step;
  event.n_tokens = e.n_tokens;
  event.full = e.full;
  event.quantized = e.quantized;
  // Windows are ranked in order: what was ever ranked is in a tier or has been evicted.
  open.n_evicted += static_cast<int>(e.evicted.size());
  const auto n_ranked = static_cast<int>(e.full.size() + e.quantized.size()) + open.n_evicted;
  event.local_begin = record_.n_sink + n_ranked * record_.window;
  for (int h = 0; h < record_.heads_per_unit(); ++h) {
    const double* mass = mass_of(e.layer, std::max(e.head, 0) * record_.heads_per_unit() + h);
    for (const WindowId w : e.quantized) event.quantized_mass.push_back(mass[w]);
  }
  std::ranges::fill(open.slot, -1);
  for (std::size_t i = 0; i < e.quantized.size(); ++i) {
    open.slot[e.quantized[i]] = static_cast<std::int32_t>(i);
  }
  record_.units[unit].push_back(std::move(event));
}

PolicyRecord PolicyRecorder::finish(const KvCache& cache) {
  record_.full_quota = cache.budget().quota.n_full;
  record_.counters = cache.counters();
  return std::move(record_);
}

}  // namespace qevict
