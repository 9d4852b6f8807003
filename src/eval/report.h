// OUT/report.html: one file, nothing loaded from elsewhere.
#pragma once

#include <span>
#include <string>

#include "eval/cell.h"
#include "eval/settings.h"
#include "eval/summary.h"

namespace qevict {

std::string report_html(const RunSettings& settings, const Summary& summary,
                        std::span<const CellResult> cells,
                        std::span<const std::string> diagnostics_lines = {});

}  // namespace qevict
