#include "cli/json_report.h"

namespace qevict::cli {
namespace {

Json timing_json(const Timing& timing, double load_ms) {
  return {{"load_ms", load_ms},
          {"ttft_ms", timing.ttft_ms},
          {"prefill_tok_s", timing.prefill_tok_s},
          {"tpot_ms", {{"median", timing.tpot_median_ms}, {"p95", timing.tpot_p95_ms}}},
          {"attention_ms_per_token", timing.attention_ms_per_token},
          {"routing_ms_per_event", timing.routing_ms_per_event}};
}

Json logprobs_json(const std::vector<std::vector<TokenLogprob>>& steps) {
  Json out = Json::array();
  for (const auto& step : steps) {
    Json row = Json::array();
    for (const TokenLogprob& entry : step) {
      row.push_back({{"id", entry.id}, {"logprob", entry.logprob}});
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

std::string dump_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double per_layer(std::int64_t windows, const CacheStats& stats) {
  return stats.n_layers > 0 ? static_cast<double>(windows) / stats.n_layers : 0.0;
}

Json kv_json(const CacheStats& s) {
  Json json = {{"budget_bytes", s.budget_bytes},
               {"resident_bytes", s.resident_bytes},
               {"peak_resident_bytes", s.peak_resident_bytes},
               {"full_cache_bytes", s.full_cache_bytes},
               {"reserved_bytes", s.reserved_bytes},
               {"bytes",
                {{"sink", s.sink_bytes},
                 {"local", s.local_bytes},
                 {"full", s.full_bytes},
                 {"quantized", s.quantized_bytes}}},
               {"metadata_bytes",
                {{"positions", s.positions_bytes},
                 {"ledger", s.ledger_bytes},
                 {"dormant", s.dormant_bytes},
                 {"scores", s.scores_bytes}}},
               {"workspace_peak_bytes", s.workspace_peak_bytes},
               {"windows",
                {{"full", per_layer(s.full_windows, s)},
                 {"quantized", per_layer(s.quantized_windows, s)},
                 {"evicted", per_layer(s.evicted_windows, s)}}},
               {"windows_total",
                {{"full", s.full_windows},
                 {"quantized", s.quantized_windows},
                 {"evicted", s.evicted_windows}}},
               {"layers", s.n_layers},
               {"tokens", s.n_tokens},
               {"budget_raised", s.budget_raised},
               {"uncompressed", s.uncompressed},
               {"events", s.events},
               {"promotions", s.promotions},
               {"demotions", s.demotions},
               {"first_demotions", s.first_demotions},
               {"reactivations", s.reactivations},
               {"evictions", s.evictions}};
  if (!s.rungs.empty()) {
    Json& bits = json["windows_by_bits"] = Json::object();  // summed over layers
    for (const RungStats& rung : s.rungs) bits[std::to_string(rung.bits)] = rung.windows;
    json["lowerings"] = s.lowerings;
  }
  return json;
}

const char* attention_name(bool fused) { return fused ? "fused" : "materialised"; }

Json run_json(const GenerateResult& result, const RunContext& context) {
  Json json = {{"model", context.model},
               {"policy", context.policy},
               {"kv_budget", context.kv_budget},
               {"prompt_tokens", result.prompt_tokens},
               {"generated_tokens", result.tokens.size()},
               {"tokens", result.tokens},
               {"text", result.text},
               {"stop_reason", to_string(result.stop_reason)}};
  if (!result.logprobs.empty()) json["logprobs"] = logprobs_json(result.logprobs);
  json["timing"] = timing_json(result.timing, context.load_ms);
  json["kv"] = kv_json(result.kv);
  json["budget_raised"] = result.kv.budget_raised;
  json["uncompressed"] = result.kv.uncompressed;
  json["peak_rss_bytes"] = result.peak_rss_bytes;
  json["rss_after_load_bytes"] = context.rss_after_load_bytes;
  json["rss_after_prefill_bytes"] = result.rss_after_prefill_bytes;
  json["isa"] = context.isa;
  json["attention"] = attention_name(context.fused_attention);
  json["threads"] = context.n_threads;
  json["ctx_size"] = context.ctx_size;
  json["warnings"] = result.warnings;
  return json;
}

Json trace_json(const LayerEvent& e, bool with_scores) {
  Json json = {{"event", e.event},
               {"step", e.step},
               {"tokens", e.n_tokens},
               {"layer", e.layer},
               {"full", e.full},
               {"quantized", e.quantized},
               {"evicted", e.evicted},
               {"promoted", e.promoted},
               {"demoted", e.demoted},
               {"reactivated", e.reactivated},
               {"first_demoted", e.first_demoted},
               {"dormant", e.dormant},
               {"bytes",
                {{"sink", e.bytes.sink},
                 {"local", e.bytes.local},
                 {"full", e.bytes.full},
                 {"quantized", e.bytes.quantized},
                 {"dormant", e.dormant_bytes},
                 {"total", e.bytes.total()}}}};
  if (e.head >= 0) json["head"] = e.head;
  if (!e.lowered.empty()) json["lowered"] = e.lowered;
  for (RungId r = 0; r < kMaxRungs; ++r) {
    if (!e.rungs[r].empty()) json["bits"][std::to_string(kRungs[r].bits)] = e.rungs[r];
  }
  if (with_scores) {
    // [window, score] of every candidate, before the move.
    Json scores = Json::array();
    for (const auto& [window, score] : e.scores) scores.push_back(Json::array({window, score}));
    json["scores"] = std::move(scores);
  }
  return json;
}

}  // namespace qevict::cli
