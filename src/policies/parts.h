// Parts that policies share. A policy is one file that defines `PolicySpec NAME_policy()` and one
// line in registry.cpp.
#pragma once

#include <memory>

#include "kv/policy.h"

namespace qevict {

// Every layer gets the quota that the budget formula gives.
std::unique_ptr<Allocator> make_uniform_allocator(const CacheConfig& config);
// Of policies that rank nothing: needs nothing, all scores are 0.
std::unique_ptr<Scorer> make_no_scorer(const CacheConfig& config);

// The ranker that config.ranker names: qevict's, and its variants'.
std::unique_ptr<Scorer> make_ranker(const CacheConfig& config);

// A window of one token and no Quantized tier: how token-level eviction is stored.
void use_single_tokens(CacheConfig& config);

// Cumulative attention mass; of every step the last one counts in full, what was there before times
// `decay`. prompt_rows: as in Needs.
std::unique_ptr<Scorer> make_mass_scorer(double power, double decay, int prompt_rows = 0);

}  // namespace qevict
