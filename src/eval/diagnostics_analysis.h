// The diagnostics of one run: a policy's events held against the full cache's attention on the same
// tokens.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "eval/diagnostics.h"
#include "eval/diagnostics_record.h"

namespace qevict {

// Of one event in one layer, or averaged. NaN: not defined. Shares leave sinks out.
struct DiagnosticValues {
  // Future missed mass of the next 32 steps: of the heads' mean attention, cut short at the end of
  // the run; only of events that have 32 steps left; with sinks; the mean of the heads' own ratios.
  double fmm, fmm_full_horizon, fmm_with_sink, fmm_per_head;
  // As the authors' code feeds it, full horizons only: the window that is partial at the event
  // counts as a whole; the event is dated a step later too.
  double fmm_whole_windows, fmm_authors;
  // Where the next 32 steps' attention goes, and where all attention so far went, by tier.
  double share_full, share_quantized, share_evicted, share_local;
  double cum_full, cum_quantized, cum_evicted, cum_local;
  // Windows in Quantized after the event, mass since the start, policy and full cache: cosine of
  // the heads' mean, cosine of the layer's worst head (over events: the smallest value, not the
  // mean), ratio of sums, overlap.
  double qsa, qsa_head_min, rq, rq_overlap;
  // The same windows' mass until the next event: ratio; ratio and overlap when each head's mass
  // under the policy is scaled so that its local zone, which both read exactly, has the full
  // cache's mass.
  double rq_interval, rq_rescaled, rq_fidelity;
  double churn;  // from the event before
};

struct DiagnosticField {
  const char* name;
  double DiagnosticValues::* value;
};
// All values, in the order of reports.
std::span<const DiagnosticField> diagnostic_fields();

// Of one query head, by event.
struct HeadDiagnostics {
  std::vector<double> fmm, qsa;
};

inline constexpr std::array<int, 4> kRevivalLengths = {1, 2, 3, 4};

struct PolicyDiagnostics {
  std::vector<int> event_steps;             // those before the last step
  std::vector<DiagnosticValues> per_event;  // [events], over the layers
  std::vector<DiagnosticValues> per_layer;  // [layers], over the events
  DiagnosticValues mean;                    // over per_event: events and layers weigh the same
  std::vector<HeadDiagnostics> per_head;    // [n_layers * n_heads]
  // By kRevivalLengths: of the policy's Full sets, and of the sets that the full cache's attention
  // so far would put there.
  std::array<Revivals, 4> revivals, oracle_revivals;

  double worst_head_qsa() const;  // the smallest of the heads' means over the events
};

// read_quantized false: as if the Quantized tier had been out of reach.
PolicyDiagnostics diagnose(const AttentionRecord& full, const PolicyRecord& policy,
                           bool read_quantized = true);

}  // namespace qevict
