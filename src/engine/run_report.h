// Numbers about a run: order statistics, resident memory, cache statistics, log-probabilities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace qevict {

// The q-quantile by linear interpolation; 0 when empty.
double quantile(std::vector<double> values, double q);

CacheStats collect_stats(const KvCache& cache, std::size_t workspace_peak_bytes);

// log(sum(exp(logits))), in double.
double log_sum_exp(std::span<const float> logits);

// The k most likely tokens of softmax(logits), in double; ties by the lower id.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int k);

}  // namespace qevict
