// The policies by name: one line each in registry.cpp, one file each beside it.
#pragma once

#include <span>
#include <string_view>

#include "kv/policy.h"
#include "qevict/result.h"

namespace qevict {

std::span<const PolicySpec> policies();
// Null when unknown.
const PolicySpec* find_policy(std::string_view name);
// The same for a name that a user gave: the error lists the known ones.
Result<const PolicySpec*> require_policy(std::string_view name);
// The policy of `config`, its own parameters checked.
Result<const PolicySpec*> require_policy(const CacheConfig& config);

}  // namespace qevict
