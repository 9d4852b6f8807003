// The policies by name: one line each in registry.cpp, one file each beside it.
#pragma once

#include <span>
#include <string_view>

#include "kv/policy.h"

namespace qevict {

std::span<const PolicySpec> policies();
// Null when unknown.
const PolicySpec* find_policy(std::string_view name);

}  // namespace qevict
