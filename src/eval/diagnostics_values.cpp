#include "eval/diagnostics_values.h"

#include <limits>
#include <vector>

#include "eval/diagnostics.h"

namespace qevict {
namespace {

constexpr DiagnosticField kFields[] = {
    {"fmm", &DiagnosticValues::fmm},
    {"fmm_full_horizon", &DiagnosticValues::fmm_full_horizon},
    {"fmm_with_sink", &DiagnosticValues::fmm_with_sink},
    {"fmm_per_head", &DiagnosticValues::fmm_per_head},
    {"fmm_whole_windows", &DiagnosticValues::fmm_whole_windows},
    {"fmm_authors", &DiagnosticValues::fmm_authors},
    {"share_full", &DiagnosticValues::share_full},
    {"share_quantized", &DiagnosticValues::share_quantized},
    {"share_evicted", &DiagnosticValues::share_evicted},
    {"share_local", &DiagnosticValues::share_local},
    {"cum_full", &DiagnosticValues::cum_full},
    {"cum_quantized", &DiagnosticValues::cum_quantized},
    {"cum_evicted", &DiagnosticValues::cum_evicted},
    {"cum_local", &DiagnosticValues::cum_local},
    {"qsa", &DiagnosticValues::qsa},
    {"qsa_head_min", &DiagnosticValues::qsa_head_min},
    {"qsa_spearman", &DiagnosticValues::qsa_spearman},
    {"rq", &DiagnosticValues::rq},
    {"rq_overlap", &DiagnosticValues::rq_overlap},
    {"rq_interval", &DiagnosticValues::rq_interval},
    {"rq_rescaled", &DiagnosticValues::rq_rescaled},
    {"rq_fidelity", &DiagnosticValues::rq_fidelity},
    {"rq_step", &DiagnosticValues::rq_step},
    {"churn", &DiagnosticValues::churn},
};

}  // namespace

std::span<const DiagnosticField> diagnostic_fields() { return kFields; }

DiagnosticValues average(std::span<const DiagnosticValues> values) {
  DiagnosticValues out;
  std::vector<double> column;
  for (const DiagnosticField& field : kFields) {
    column.clear();
    for (const DiagnosticValues& v : values) column.push_back(v.*field.value);
    out.*field.value = defined_mean(column);
  }
  return out;
}

DiagnosticValues average_over_events(std::span<const DiagnosticValues> values) {
  DiagnosticValues out = average(values);
  std::vector<double> worst;
  for (const DiagnosticValues& v : values) worst.push_back(v.qsa_head_min);
  out.qsa_head_min = defined_min(worst);
  return out;
}

DiagnosticValues undefined_values() {
  DiagnosticValues values;
  for (const DiagnosticField& field : kFields)
    values.*field.value = std::numeric_limits<double>::quiet_NaN();
  return values;
}

}  // namespace qevict
