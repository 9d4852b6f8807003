// The JSON objects that the commands print (docs: the command line reference).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/engine.h"
#include "kv/kv_cache.h"

namespace qevict::cli {

using Json = nlohmann::ordered_json;

// One line; bytes that are no UTF-8 become U+FFFD, numbers that are not finite become null.
std::string dump_json(const Json& json);

// What the result does not know about a run.
struct RunContext {
  std::string model;
  std::string policy;
  std::string kv_budget;
  std::string isa;
  double load_ms = 0.0;
  int n_threads = 0;
  int ctx_size = 0;
  std::int64_t rss_after_load_bytes = 0;
  bool fused_attention = true;
};

// "fused" or "materialised", as --attention has it.
const char* attention_name(bool fused);

Json run_json(const GenerateResult& result, const RunContext& context);
Json kv_json(const CacheStats& stats);
Json trace_json(const LayerEvent& event, bool with_scores);

// Windows of a tier per layer, averaged.
double per_layer(std::int64_t windows, const CacheStats& stats);

}  // namespace qevict::cli
