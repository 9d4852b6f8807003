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

}  // namespace qevict
