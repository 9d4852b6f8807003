#include "cli/diagnostics_table.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "cli/json_report.h"
#include "eval/diagnostics_json.h"

namespace qevict::cli {
namespace {

struct Continuation {
  std::span<const TokenId> prompt;
  std::vector<TokenId> forced;
};

Result<Continuation> choose_tokens(Engine& engine, std::span<const TokenId> text,
                                   const PerplexityOptions& options) {
  if (options.stride > 0) {
    return bad_input("diagnostics follow one place (--stride): leave one of the two out");
  }
  const auto n_prompt = static_cast<std::size_t>(options.n_prompt);
  const auto n_continue = static_cast<std::size_t>(options.n_continue);
  const bool from_text = options.forced.empty() && !options.own_answer;
  const std::size_t needed = n_prompt + (from_text ? n_continue : 0);
  if (text.size() < needed) {
    return bad_input(fmt::format(
        "the text has {} tokens, {} are needed (--prompt, --continue): give a longer text or lower "
        "them",
        text.size(), needed));
  }
  Continuation out{text.first(n_prompt), options.forced};
  if (from_text) {
    const auto next = text.subspan(n_prompt, n_continue);
    out.forced.assign(next.begin(), next.end());
  } else if (options.own_answer) {
    auto answer = full_cache_answer(engine, out.prompt, options.n_continue, options.cancel);
    if (!answer) return std::unexpected(answer.error());
    out.forced = std::move(*answer);
  }
  if (out.forced.size() > n_continue) out.forced.resize(n_continue);
  return out;
}

// "-" where a value is not defined.
std::string cell(double x, int decimals) {
  return std::isnan(x) ? "-" : fmt::format("{:.{}f}", x, decimals);
}

std::string percent(double x) { return std::isnan(x) ? "-" : fmt::format("{:.1f}", 100.0 * x); }

constexpr const char* kRow =
    "{:<34} {:>7} {:>6} {:>6} {:>7} {:>20} {:>7} {:>6} {:>11} {:>10} {:>8}\n";

std::string header() {
  return fmt::format(fmt::runtime(kRow), "policy", "budget", "FMM%", "(a+b)", "churn",
                     "F/Q/E % so far", "QSA", "RQ", "LIR% pol/or", "KL", "same top");
}

std::string to_row(const DiagnosticsRow& row) {
  const PolicyDiagnostics& d = row.diagnostics;
  const DiagnosticValues& v = d.mean;
  constexpr std::size_t kM3 = 2;
  return fmt::format(
      fmt::runtime(kRow), row.name, row.config.budget.to_string(), percent(v.fmm),
      percent(v.fmm_authors), cell(v.churn, 4),
      fmt::format("{} {} {}", percent(v.cum_full), percent(v.cum_quantized),
                  percent(v.cum_evicted)),
      cell(v.qsa, 4), cell(v.rq_fidelity, 3),
      fmt::format("{} {}", percent(d.revivals[kM3].rate()), percent(d.oracle_revivals[kM3].rate())),
      cell(row.mean_kl(), 4), cell(row.same_top1, 3));
}

}  // namespace

Status print_diagnostics(Engine& engine, std::span<const TokenId> text,
                         const DiagnosticsRequest& request, const PerplexityOptions& options,
                         const Console& console, Output& output) {
  const Result<Continuation> tokens = choose_tokens(engine, text, options);
  if (!tokens) return std::unexpected(tokens.error());
  ProgressBar bar(console, "reading and decoding");
  DiagnosticsOptions run;
  run.cancel = options.cancel;
  if (options.own_answer) run.banned = engine.tokenizer().eog_tokens();
  run.progress = [&bar](double fraction) { bar.update(fraction); };
  const auto report = run_diagnostics(engine, tokens->prompt, tokens->forced, request.cells, run);
  bar.clear();
  if (!report) return std::unexpected(report.error());
  if (!request.json) output.write(request.prompt + "\n" + header());
  const auto detail = request.details ? DiagnosticsDetail::All : DiagnosticsDetail::Means;
  for (const DiagnosticsRow& row : report->rows) {
    if (!request.json) {
      output.write(to_row(row));
      continue;
    }
    Json line = {{"prompt", request.prompt}};
    line.update(to_json(*report, row, detail));
    output.write(dump_json(line) + "\n");
  }
  return {};
}

}  // namespace qevict::cli
