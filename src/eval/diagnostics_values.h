// The values that diagnostics report, and their means.
#pragma once

#include <span>

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
  double qsa_spearman;  // rank correlation of the same two vectors
  // The same windows' mass until the next event: ratio; ratio and overlap when each head's mass
  // under the policy is scaled so that its local zone, which both read exactly, has the full
  // cache's mass.
  double rq_interval, rq_rescaled, rq_fidelity;
  double rq_step;  // rq_fidelity by decode step and head instead of by interval
  double churn;    // from the event before
};

struct DiagnosticField {
  const char* name;
  double DiagnosticValues::* value;
};
// All values, in the order of reports.
std::span<const DiagnosticField> diagnostic_fields();

DiagnosticValues undefined_values();
// The mean of each value where it is defined.
DiagnosticValues average(std::span<const DiagnosticValues> values);
// The same, but qsa_head_min is the smallest one.
DiagnosticValues average_over_events(std::span<const DiagnosticValues> values);

}  // namespace qevict
