// What `qevict perplexity` prints: a line a prompt and cell, and over several prompts their means.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/json_report.h"
#include "engine/perplexity.h"
#include "eval/sample_run.h"

namespace qevict::cli {

Json perplexity_json(const std::string& prompt, const PerplexityResult& result, bool kl);
std::string perplexity_row(const PerplexityResult& result, bool kl);
std::string perplexity_header(bool kl);

// One contender over several prompts. Geometric means: a ratio counts alike wherever it occurs.
struct PerplexityMean {
  int prompts = 0;
  double ppl = 0.0;
  double kl = 0.0;        // over the prompts where it is above 0
  double kv_bytes = 0.0;  // arithmetic
  // This contender's KL over the reference's on the same prompts, with the bootstrap's 95 %
  // interval (prompts are drawn): above 1 the reference is closer to the full cache.
  struct Ratio {
    std::string reference_budget;
    double ratio = 0.0, low = 0.0, high = 0.0;
    int n = 0;
  };
  std::vector<Ratio> kl_ratios;  // one a budget of the reference; only its own where it takes one
};

// results: [prompts][contenders]. The reference is the first contender with a budget that
// may_be_reference(); -1 when there is none.
int perplexity_reference(std::span<const Contender> contenders);
std::vector<PerplexityMean> perplexity_means(
    std::span<const Contender> contenders, std::span<const std::vector<PerplexityResult>> results);

Json mean_json(const Contender& contender, const PerplexityMean& mean, const std::string& reference,
               bool kl);
std::string mean_row(const Contender& contender, const PerplexityMean& mean, bool kl);

}  // namespace qevict::cli
