// qevict perplexity --diagnostics: what policies lose of the full cache's attention along a text.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/terminal.h"
#include "engine/perplexity.h"
#include "eval/diagnostics_run.h"

namespace qevict::cli {

struct DiagnosticsRequest {
  std::string prompt;  // its file
  std::vector<DiagnosticsCell> cells;
  bool json = false;     // a line of JSON a policy; else a table
  bool details = false;  // in the JSON: also by event, layer, head and step
};

// Along the text, the forced tokens or the full cache's own answer, as `options` says.
Status print_diagnostics(Engine& engine, std::span<const TokenId> text,
                         const DiagnosticsRequest& request, const PerplexityOptions& options,
                         const Console& console, Output& output);

}  // namespace qevict::cli
