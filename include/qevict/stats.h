// What a generation did and what the cache holds; the source of `run --json` (cli.md) and the
// summary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace qevict {

// Windows that are quantised with so many bits, summed over layers.
struct RungStats {
  int bits = 0;
  std::int64_t windows = 0;
};

struct CacheStats {
  std::int64_t budget_bytes = 0;         // beta * full cache of prompt + n_predict, all layers
  std::int64_t resident_bytes = 0;       // payload and grids held now (sum of the four below)
  std::int64_t peak_resident_bytes = 0;  // its maximum after a layer's prompt was compressed
  std::int64_t full_cache_bytes = 0;     // fp16 cache of the positions so far
  std::int64_t reserved_bytes = 0;       // allocated local rows not in use
  std::int64_t sink_bytes = 0, local_bytes = 0, full_bytes = 0, quantized_bytes = 0;
  std::int64_t positions_bytes = 0, ledger_bytes = 0, dormant_bytes = 0, scores_bytes = 0;
  std::int64_t workspace_peak_bytes =
      0;  // uncompressed layer, hidden states, scratch, graph buffers
  std::int64_t full_windows = 0, quantized_windows = 0, evicted_windows = 0;  // summed over layers
  std::vector<RungStats> rungs;  // of a policy with a precision ladder; their sum is
                                 // quantized_windows
  int n_layers = 0;
  std::int64_t n_tokens = 0;  // positions so far
  bool budget_raised = false;
  bool over_budget = false;   // the policy keeps more than the budget allows: its smallest amount
  bool uncompressed = false;  // the budget covers the whole context
  std::int64_t events = 0, promotions = 0, demotions = 0, first_demotions = 0, evictions = 0,
               reactivations = 0, lowerings = 0;
};

struct Timing {
  double load_ms = 0, ttft_ms = 0, prefill_tok_s = 0;
  double tpot_median_ms = 0, tpot_p95_ms = 0;
  double attention_ms_per_token = 0, routing_ms_per_event = 0;
  std::vector<double> step_ms;  // every decode step
};

}  // namespace qevict
