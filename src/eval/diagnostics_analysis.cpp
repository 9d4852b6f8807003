#include "eval/diagnostics_analysis.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/math.h"

namespace qevict {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

// Adds b, scaled, to a, which grows to its size.
void add_scaled(std::vector<double>& a, std::span<const double> b, double scale = 1.0) {
  a.resize(std::max(a.size(), b.size()));
  for (std::size_t i = 0; i < b.size(); ++i) a[i] += b[i] * scale;
}

// One layer's attention of the full cache, summed up to a moving decode step.
class CumulativeAttention {
 public:
  CumulativeAttention(const AttentionRecord& full, int layer) : full_(full), layer_(layer) {
    for (int h = 0; h < full.n_heads; ++h) {
      const std::span<const double> prompt = full.prompt_mass(layer, h);
      heads_.emplace_back(prompt.begin(), prompt.end());
      heads_.back().resize(static_cast<std::size_t>(full.n_positions()));
    }
  }
  void advance_to(int step) {
    for (; step_ < step; ++step_) {
      for (int h = 0; h < full_.n_heads; ++h) {
        const std::span<const float> row = full_.step_attention(layer_, h).step(step_ + 1);
        for (std::size_t i = 0; i < row.size(); ++i) heads_[h][i] += row[i];
      }
    }
  }
  std::span<const double> head(int h) const { return heads_[h]; }

 private:
  const AttentionRecord& full_;
  int layer_;
  int step_ = 0;
  std::vector<std::vector<double>> heads_;  // [n_heads][n_positions]
};

// One query head at one event.
struct HeadEvent {
  PlaceMass next, whole, later, past;  // of the full cache, by the policy's places
  // By Quantized window: since the start, and until the next event.
  std::vector<double> policy, full, policy_interval, full_interval;
  double local_scale = kUndefined;   // full cache / policy, local zone of the interval
  std::vector<double> step_overlap;  // by step of the interval, each scaled by its own local zone
};

class LayerAnalysis {
 public:
  LayerAnalysis(const AttentionRecord& full, const PolicyRecord& policy, int layer,
                bool read_quantized)
      : full_(full),
        policy_(policy),
        layer_(layer),
        read_quantized_(read_quantized && policy.quantized_accessible),
        cumulative_(full, layer) {}

  // Events in order. heads [n_heads]: each gets its values appended.
  DiagnosticValues event(std::size_t e, std::span<HeadDiagnostics> heads);
  void count_spells(PolicyDiagnostics& out) const;

 private:
  int ranked(const UnitEvent& event) const {
    return (event.local_begin - policy_.n_sink) / policy_.window;
  }
  TokenPos begin_of(WindowId w) const { return policy_.n_sink + w * policy_.window; }
  // n_tokens with the rest of a window that it cuts, as far as the run goes.
  TokenPos rounded_up(TokenPos n_tokens) const {
    const int windows = ceil_div(n_tokens - policy_.n_sink, policy_.window);
    return std::min(std::max(begin_of(windows), n_tokens), full_.n_positions());
  }
  std::vector<Place> places(const UnitEvent& event, TokenPos n_tokens) const;
  HeadEvent head_event(int u, int head, std::size_t e) const;
  void add_interval(const UnitEvent& event, const UnitEvent& next, int head, HeadEvent& out) const;
  template <typename T>
  std::vector<double> by_window(std::span<const T> mass, std::span<const WindowId> windows) const;
  std::vector<WindowId> best_windows(const CumulativeAttention& attention, int u, int n) const;
  double missed(const PlaceMass& mass, Sinks sinks = Sinks::Excluded) const {
    return read_quantized_ ? missed_share(mass, sinks)
                           : missed_share_without_quantized(mass, sinks);
  }
  DiagnosticValues mass_values(std::span<const HeadEvent> heads, int step) const;
  void add_agreement(std::span<const HeadEvent> heads, DiagnosticValues& values) const;
  double churn(std::size_t e) const;

  const AttentionRecord& full_;
  const PolicyRecord& policy_;
  int layer_;
  bool read_quantized_;
  CumulativeAttention cumulative_;
};

std::vector<Place> LayerAnalysis::places(const UnitEvent& event, TokenPos n_tokens) const {
  std::vector<Place> places(static_cast<std::size_t>(n_tokens), Place::Evicted);
  const auto fill = [&](TokenPos from, TokenPos to, Place place) {
    std::fill(places.begin() + std::min(from, n_tokens), places.begin() + std::min(to, n_tokens),
              place);
  };
  fill(0, policy_.n_sink, Place::Sink);
  fill(event.local_begin, n_tokens, Place::Local);
  for (const WindowId w : event.full) fill(begin_of(w), begin_of(w + 1), Place::Full);
  for (const WindowId w : event.quantized) fill(begin_of(w), begin_of(w + 1), Place::Quantized);
  return places;
}

template <typename T>
std::vector<double> LayerAnalysis::by_window(std::span<const T> mass,
                                             std::span<const WindowId> windows) const {
  std::vector<double> sums;
  sums.reserve(windows.size());
  for (const WindowId w : windows) {
    const auto begin = mass.begin() + begin_of(w);
    sums.push_back(std::accumulate(begin, begin + policy_.window, 0.0));
  }
  return sums;
}

void LayerAnalysis::add_interval(const UnitEvent& event, const UnitEvent& next, int head,
                                 HeadEvent& out) const {
  const StepAttention attention = full_.step_attention(layer_, head);
  const std::size_t n = event.quantized.size();
  const std::size_t heads = policy_.heads_per_unit();
  const std::size_t n_rows = static_cast<std::size_t>(next.step - event.step) * heads;
  QE_CHECK(event.step_mass.size() >= n_rows * n && event.step_local.size() >= n_rows);
  out.policy_interval.assign(n, 0.0);
  out.full_interval.assign(n, 0.0);
  double policy_local = 0.0, full_local = 0.0;
  for (int step = event.step + 1; step <= next.step; ++step) {
    const std::size_t row = (step - event.step - 1) * heads + head % heads;
    const std::span<const float> own = std::span(event.step_mass).subspan(row * n, n);
    const std::span<const float> mass = attention.step(step);
    const std::vector<double> policy(own.begin(), own.end());
    const std::vector<double> full = by_window(mass, event.quantized);
    const double local = std::accumulate(mass.begin() + event.local_begin, mass.end(), 0.0);
    add_scaled(out.policy_interval, policy);
    add_scaled(out.full_interval, full);
    policy_local += event.step_local[row];
    full_local += local;
    std::vector<double> scaled(n, 0.0);
    add_scaled(scaled, policy, local / event.step_local[row]);
    out.step_overlap.push_back(mass_agreement(scaled, full).overlap);
  }
  out.local_scale = full_local / policy_local;
}

HeadEvent LayerAnalysis::head_event(int u, int head, std::size_t e) const {
  const std::vector<UnitEvent>& events = policy_.unit(layer_, u);
  const UnitEvent& event = events[e];
  const StepAttention attention = full_.step_attention(layer_, head);
  const std::vector<Place> now = places(event, event.n_tokens);
  const std::vector<Place> whole = places(event, rounded_up(event.n_tokens));
  const std::vector<Place> whole_later = places(event, rounded_up(event.n_tokens + 1));
  HeadEvent out;
  out.next = future_mass(attention, event.step, kFutureHorizon, now);
  out.whole = future_mass(attention, event.step, kFutureHorizon, whole);
  out.later = future_mass(attention, event.step + 1, kFutureHorizon, whole_later);
  out.past = mass_by_place(cumulative_.head(head), now);

  const std::size_t n = event.quantized.size();
  const std::size_t h = head % policy_.heads_per_unit();
  const auto own = event.quantized_mass.begin() + static_cast<std::ptrdiff_t>(h * n);
  out.policy.assign(own, own + static_cast<std::ptrdiff_t>(n));
  out.full = by_window(cumulative_.head(head), event.quantized);
  if (e + 1 < events.size()) add_interval(event, events[e + 1], head, out);
  return out;
}

DiagnosticValues LayerAnalysis::mass_values(std::span<const HeadEvent> heads, int step) const {
  PlaceMass next, whole, later, past;
  std::vector<double> of_heads;
  for (const HeadEvent& head : heads) {
    next += head.next, whole += head.whole, later += head.later, past += head.past;
    of_heads.push_back(missed(head.next));
  }
  const StepAttention attention = full_.step_attention(layer_, 0);
  DiagnosticValues values = undefined_values();
  values.fmm = missed(next);
  values.fmm_with_sink = missed(next, Sinks::Included);
  values.fmm_per_head = defined_mean(of_heads);
  if (has_full_horizon(attention, step, kFutureHorizon)) {
    values.fmm_full_horizon = values.fmm;
    values.fmm_whole_windows = missed(whole);
  }
  if (has_full_horizon(attention, step + 1, kFutureHorizon)) values.fmm_authors = missed(later);
  values.share_full = next.full / next.unsunk();
  values.share_quantized = next.quantized / next.unsunk();
  values.share_evicted = next.evicted / next.unsunk();
  values.share_local = next.local / next.unsunk();
  values.cum_full = past.full / past.unsunk();
  values.cum_quantized = past.quantized / past.unsunk();
  values.cum_evicted = past.evicted / past.unsunk();
  values.cum_local = past.local / past.unsunk();
  return values;
}

void LayerAnalysis::add_agreement(std::span<const HeadEvent> heads,
                                  DiagnosticValues& values) const {
  std::vector<double> policy, full, policy_interval, full_interval, rescaled;
  std::vector<double> cosines, all_rescaled, all_full, step_overlaps;
  for (const HeadEvent& head : heads) {
    cosines.push_back(mass_agreement(head.policy, head.full).cosine);
    add_scaled(policy, head.policy);
    add_scaled(full, head.full);
    add_scaled(policy_interval, head.policy_interval);
    add_scaled(full_interval, head.full_interval);
    for (const double x : head.policy_interval) all_rescaled.push_back(x * head.local_scale);
    all_full.insert(all_full.end(), head.full_interval.begin(), head.full_interval.end());
    step_overlaps.insert(step_overlaps.end(), head.step_overlap.begin(), head.step_overlap.end());
  }
  const MassAgreement since_start = mass_agreement(policy, full);
  values.qsa = since_start.cosine;
  values.qsa_head_min = defined_min(cosines);
  values.qsa_spearman = rank_correlation(policy, full);
  values.rq = since_start.ratio;
  values.rq_overlap = since_start.overlap;
  values.rq_interval = mass_agreement(policy_interval, full_interval).ratio;
  const MassAgreement scaled = mass_agreement(all_rescaled, all_full);
  values.rq_rescaled = scaled.ratio;
  values.rq_fidelity = scaled.overlap;
  values.rq_step = defined_mean(step_overlaps);
}

double LayerAnalysis::churn(std::size_t e) const {
  std::vector<double> of_units;
  for (int u = 0; u < policy_.units_per_layer; ++u) {
    const auto held = [&](const UnitEvent& event) {
      std::vector<WindowId> ids;
      std::ranges::merge(event.full, event.quantized, std::back_inserter(ids));
      return ids;
    };
    const std::vector<UnitEvent>& events = policy_.unit(layer_, u);
    of_units.push_back(selection_churn(held(events[e - 1]), held(events[e])));
  }
  return defined_mean(of_units);
}

DiagnosticValues LayerAnalysis::event(std::size_t e, std::span<HeadDiagnostics> heads) {
  const int step = policy_.unit(layer_, 0)[e].step;
  cumulative_.advance_to(step);
  std::vector<HeadEvent> events;
  for (int h = 0; h < policy_.n_heads; ++h) {
    events.push_back(head_event(h / policy_.heads_per_unit(), h, e));
    const HeadEvent& head = events.back();
    heads[h].fmm.push_back(missed(head.next));
    heads[h].qsa.push_back(read_quantized_ ? mass_agreement(head.policy, head.full).cosine
                                           : kUndefined);
  }
  DiagnosticValues values = mass_values(events, step);
  if (read_quantized_) add_agreement(events, values);
  if (e > 0) values.churn = churn(e);
  return values;
}

// Ties: the lower window.
std::vector<WindowId> LayerAnalysis::best_windows(const CumulativeAttention& attention, int u,
                                                  int n) const {
  std::vector<WindowId> windows(static_cast<std::size_t>(n));
  std::iota(windows.begin(), windows.end(), 0);
  std::vector<double> scores(windows.size());
  for (int h = 0; h < policy_.heads_per_unit(); ++h) {
    add_scaled(scores, by_window(attention.head(u * policy_.heads_per_unit() + h), windows));
  }
  std::ranges::sort(windows, [&](WindowId a, WindowId b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  windows.resize(std::min(windows.size(), static_cast<std::size_t>(policy_.full_quota)));
  return windows;
}

void LayerAnalysis::count_spells(PolicyDiagnostics& out) const {
  if (!policy_.has_full_tier) return;
  for (int u = 0; u < policy_.units_per_layer; ++u) {
    const std::vector<UnitEvent>& events = policy_.unit(layer_, u);
    if (events.empty()) continue;
    CumulativeAttention attention(full_, layer_);
    const int n_windows = ranked(events.back());
    std::vector<WindowState> chosen(events.size() * n_windows, WindowState::Unranked);
    std::vector<WindowState> oracle = chosen;
    for (std::size_t e = 0; e < events.size(); ++e) {
      attention.advance_to(events[e].step);
      const int n = ranked(events[e]);
      const auto mark = [&](std::vector<WindowState>& states, std::span<const WindowId> full) {
        WindowState* row = states.data() + e * n_windows;
        std::fill_n(row, n, WindowState::Outside);
        for (const WindowId w : full) row[w] = WindowState::Full;
      };
      mark(chosen, events[e].full);
      mark(oracle, best_windows(attention, u, n));
    }
    for (std::size_t i = 0; i < kRevivalLengths.size(); ++i) {
      out.revivals[i] += count_revivals(chosen, n_windows, kRevivalLengths[i]);
      out.oracle_revivals[i] += count_revivals(oracle, n_windows, kRevivalLengths[i]);
    }
  }
}

}  // namespace

double PolicyDiagnostics::worst_head_qsa() const {
  std::vector<double> means;
  for (const HeadDiagnostics& head : per_head) means.push_back(defined_mean(head.qsa));
  return defined_min(means);
}

PolicyDiagnostics diagnose(const AttentionRecord& full, const PolicyRecord& policy,
                           bool read_quantized) {
  PolicyDiagnostics out;
  out.per_head.resize(static_cast<std::size_t>(full.n_layers) * full.n_heads);
  // Nothing reads what an event after the last step leaves; only the spells count it.
  for (const UnitEvent& event : policy.unit(0, 0)) {
    if (event.step < full.n_steps) out.event_steps.push_back(event.step);
  }
  const std::size_t n_events = out.event_steps.size();
  std::vector<std::vector<DiagnosticValues>> by_event(n_events);
  for (int layer = 0; layer < full.n_layers; ++layer) {
    LayerAnalysis analysis(full, policy, layer, read_quantized);
    const std::span<HeadDiagnostics> heads =
        std::span(out.per_head)
            .subspan(static_cast<std::size_t>(layer) * full.n_heads, full.n_heads);
    std::vector<DiagnosticValues> of_layer;
    for (std::size_t e = 0; e < n_events; ++e) {
      of_layer.push_back(analysis.event(e, heads));
      by_event[e].push_back(of_layer.back());
    }
    out.per_layer.push_back(average_over_events(of_layer));
    analysis.count_spells(out);
  }
  for (const std::vector<DiagnosticValues>& layers : by_event) {
    out.per_event.push_back(average(layers));
  }
  out.mean = average_over_events(out.per_event);
  return out;
}

}  // namespace qevict
