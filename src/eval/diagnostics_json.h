// Diagnostics as JSON. What is not defined is null.
#pragma once

#include <nlohmann/json.hpp>

#include "eval/diagnostics_run.h"

namespace qevict {

using DiagnosticsJson = nlohmann::ordered_json;

enum class DiagnosticsDetail : std::uint8_t {
  Means,  // a value a diagnostic
  All,    // also by event, layer, head and decode step
};

// One policy's row.
DiagnosticsJson to_json(const DiagnosticsReport& report, const DiagnosticsRow& row,
                        DiagnosticsDetail detail);

}  // namespace qevict
