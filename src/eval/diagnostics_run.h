// Runs the full cache and policies along the same tokens and holds them against each other.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "eval/diagnostics_analysis.h"

namespace qevict {

struct DiagnosticsCell {
  std::string name;
  CacheConfig config;
};

// The paper's comparison, with the budget and the sizes of `base`, for the floor and the ceil rule
// of the local zone:
//   R1  single tokens, hard eviction, routed at every step
//   R2  windows, hard eviction
//   R3  QEvict; its Quantized tier out of reach (executed); without promotion (the same tokens)
//   R4  QEvict with windows of 32 tokens
std::vector<DiagnosticsCell> paper_variants(const CacheConfig& base);

struct DiagnosticsOptions {
  std::vector<TokenId> banned;  // left out of the distributions that nll, kl and same_top1 compare
  std::function<void(double)> progress;  // 0..1
  const std::atomic<bool>* cancel = nullptr;
};

// One policy along the forced tokens. A quantiser that keeps every token has no events: only nll
// and kl are defined.
struct DiagnosticsRow {
  std::string name;
  CacheConfig config;
  int window = 0;
  CacheCounters moves;  // summed over layers
  PolicyDiagnostics diagnostics;
  // The same sets, as if Quantized had been out of reach; of policies that read it and have a Full
  // tier beside it.
  std::optional<DiagnosticValues> full_tier_only;
  std::vector<double> nll, kl;  // nats, by decode step; kl from the full cache
  double same_top1 = 0.0;       // share of steps with the full cache's most likely token
  double mean_nll() const { return defined_mean(nll); }
  double mean_kl() const { return defined_mean(kl); }
};

struct DiagnosticsReport {
  int n_layers = 0, n_heads = 0, prompt_tokens = 0, decode_steps = 0;
  std::vector<double> full_nll;  // the full cache's own
  std::vector<DiagnosticsRow> rows;
};

// Reads `prompt` once for the full cache and once for all policies, then decodes along `forced`,
// whose last token is only predicted. Memory: a float for each layer, query head, step and
// position, the full cache's logits of all steps, and a PromptSnapshot. Errors: BadInput
// (materialised attention, the pnorm ranker, an empty prompt, fewer than 2 forced tokens), the
// sessions' own, Interrupted.
Result<DiagnosticsReport> run_diagnostics(Engine& engine, std::span<const TokenId> prompt,
                                          std::span<const TokenId> forced,
                                          std::span<const DiagnosticsCell> cells,
                                          const DiagnosticsOptions& options = {});

}  // namespace qevict
