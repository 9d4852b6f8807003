// The rows of a comparison: every policy of a list at every budget of another.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/options.h"
#include "eval/sample_run.h"
#include "qevict/result.h"

namespace qevict::cli {

// `policies` as the command line split them at commas; parameters that were split off go back to
// their policy. A policy that takes no budget has one row. Refused: the same row twice.
Result<std::vector<Contender>> make_contenders(const CacheConfig& base,
                                               const std::vector<std::string>& policies,
                                               const std::vector<std::string>& budgets);

}  // namespace qevict::cli
