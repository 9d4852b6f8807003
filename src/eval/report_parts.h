// The parts of the report; report.cpp puts them together. Pure: numbers in, HTML out.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/cell.h"
#include "eval/settings.h"
#include "eval/summary.h"

namespace qevict {

// "12.3 MiB".
std::string bytes_text(double bytes);

// Policies down, tasks across, one table a budget; the full cache and what takes no budget in each.
std::string overview_tables(const RunSettings& settings, const Summary& summary);

// All rows of one task with everything measured.
std::string task_table(const TaskTable& table, const std::string& reference);

// The reference policy beside each rival on the same samples.
std::string comparison_table(const TaskTable& table, const std::string& reference);

// Score over measured bytes, a plot a task and one of the average, with a legend.
std::string score_plots(const RunSettings& settings, const Summary& summary);

// A map of depth and length for each row, where sample ids name them ("length=4096,depth=50%");
// empty where none do.
std::string needle_maps(const RunSettings& settings, std::span<const CellResult> cells);

// What the caches missed, from the lines of diagnostics.jsonl; empty without any. Lines that are
// none are left out.
std::string diagnostics_section(const RunSettings& settings, std::span<const std::string> lines);

}  // namespace qevict
