#include "eval/diagnostics_json.h"

#include <cmath>

namespace qevict {
namespace {

using Json = DiagnosticsJson;

Json value(double x) { return std::isnan(x) ? Json() : Json(x); }

Json list(std::span<const double> values) {
  Json out = Json::array();
  for (const double x : values) out.push_back(value(x));
  return out;
}

Json object(const DiagnosticValues& values) {
  Json out = Json::object();
  for (const DiagnosticField& field : diagnostic_fields()) {
    out[field.name] = value(values.*field.value);
  }
  return out;
}

// {"fmm": [...], ...}
Json columns(std::span<const DiagnosticValues> rows) {
  Json out = Json::object();
  for (const DiagnosticField& field : diagnostic_fields()) {
    Json column = Json::array();
    for (const DiagnosticValues& row : rows) column.push_back(value(row.*field.value));
    out[field.name] = std::move(column);
  }
  return out;
}

Json object(const std::array<Revivals, 4>& revivals) {
  Json out = Json::object();
  for (std::size_t i = 0; i < revivals.size(); ++i) {
    out["m" + std::to_string(kRevivalLengths[i])] = {
        {"eligible", revivals[i].eligible},
        {"rescued", revivals[i].rescued},
        {"lir", value(revivals[i].rate())},
        {"ttr_median", value(revivals[i].median_time())}};
  }
  return out;
}

// [n_layers][n_heads] of `pick` of each head.
template <typename Pick>
Json by_head(const DiagnosticsReport& report, const PolicyDiagnostics& d, Pick pick) {
  Json out = Json::array();
  for (int layer = 0; layer < report.n_layers; ++layer) {
    Json heads = Json::array();
    for (int h = 0; h < report.n_heads; ++h) {
      heads.push_back(
          value(pick(d.per_head[static_cast<std::size_t>(layer) * report.n_heads + h])));
    }
    out.push_back(std::move(heads));
  }
  return out;
}

void add_details(const DiagnosticsReport& report, const DiagnosticsRow& row, Json& out) {
  const PolicyDiagnostics& d = row.diagnostics;
  out["event_steps"] = d.event_steps;
  out["per_event"] = columns(d.per_event);
  out["per_layer"] = columns(d.per_layer);
  using Head = HeadDiagnostics;
  const auto fmm = [](const Head& h) { return defined_mean(h.fmm); };
  const auto qsa = [](const Head& h) { return defined_mean(h.qsa); };
  const auto last = [](const Head& h) { return h.qsa.empty() ? NAN : h.qsa.back(); };
  // At event 0 both have seen the same attention: the first that tells something is event 1.
  const auto first = [](const Head& h) { return h.qsa.size() < 2 ? NAN : h.qsa[1]; };
  out["per_head"] = {{"fmm", by_head(report, d, fmm)},
                     {"qsa", by_head(report, d, qsa)},
                     {"qsa_first", by_head(report, d, first)},
                     {"qsa_last", by_head(report, d, last)}};
  out["step_nll"] = list(row.nll);
  out["step_kl"] = list(row.kl);
}

}  // namespace

DiagnosticsJson to_json(const DiagnosticsReport& report, const DiagnosticsRow& row,
                        DiagnosticsDetail detail) {
  const CacheConfig& c = row.config;
  const PolicyDiagnostics& d = row.diagnostics;
  Json out = {{"name", row.name},
              {"policy", c.policy},
              {"budget", c.budget.to_string()},
              {"window", row.window},
              {"local_rule", c.local_rule == LocalRule::Floor ? "floor" : "ceil"},
              {"prompt_tokens", report.prompt_tokens},
              {"decode_steps", report.decode_steps},
              {"events", d.event_steps.size()},
              {"promotions", row.moves.promotions},
              {"reactivations", row.moves.reactivations},
              {"first_demotions", row.moves.first_demotions},
              {"evictions", row.moves.evictions},
              {"lowerings", row.moves.lowerings},
              {"nll_mean", value(row.mean_nll())},
              {"nll_mean_full", value(defined_mean(report.full_nll))},
              {"kl_mean", value(row.mean_kl())},
              {"same_top1", row.same_top1}};
  out.update(object(d.mean));
  out["qsa_worst_head"] = value(d.worst_head_qsa());
  if (row.full_tier_only) {
    const DiagnosticValues& v = *row.full_tier_only;
    out["full_tier_only"] = {{"fmm", value(v.fmm)},
                             {"fmm_full_horizon", value(v.fmm_full_horizon)},
                             {"fmm_with_sink", value(v.fmm_with_sink)},
                             {"fmm_per_head", value(v.fmm_per_head)},
                             {"fmm_whole_windows", value(v.fmm_whole_windows)},
                             {"fmm_authors", value(v.fmm_authors)}};
  }
  out["lir"] = {{"policy", object(d.revivals)}, {"oracle", object(d.oracle_revivals)}};
  if (detail == DiagnosticsDetail::All) add_details(report, row, out);
  return out;
}

}  // namespace qevict
