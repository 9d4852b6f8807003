#include "cli/perplexity_summary.h"

#include <fmt/format.h>

#include <cmath>

#include "cli/terminal.h"
#include "eval/statistics.h"
#include "eval/summary.h"

namespace qevict::cli {
namespace {

std::string cell_budget(const Contender& contender) { return contender.config.budget.to_string(); }

PerplexityMean::Ratio kl_ratio(std::span<const std::vector<PerplexityResult>> results,
                               std::size_t contender, std::size_t reference) {
  std::vector<double> logs;
  for (const auto& prompt : results) {
    const double ours = prompt[reference].kl_mean;
    const double theirs = prompt[contender].kl_mean;
    if (ours > 0.0 && theirs > 0.0) logs.push_back(std::log(theirs / ours));
  }
  const Difference d = bootstrap_mean(logs);
  return {"", std::exp(d.mean), std::exp(d.low), std::exp(d.high), d.n};
}

}  // namespace

Json perplexity_json(const std::string& prompt, const PerplexityResult& r, bool kl) {
  Json line = {{"prompt", prompt},
               {"policy", r.policy},
               {"budget", r.budget.to_string()},
               {"prompt_tokens", r.prompt_tokens},
               {"scored_tokens", r.scored_tokens},
               {"ppl", r.ppl},
               {"ppl_stderr", r.ppl_stderr}};
  if (kl) {
    line["kl_mean"] = r.kl_mean;
    line["kl_p99"] = r.kl_p99;
    line["same_top1"] = r.same_top1;
  }
  line["kv_resident_bytes"] = r.kv_resident_bytes;
  line["tpot_ms"] = r.tpot_median_ms;
  return line;
}

std::string perplexity_header(bool kl) {
  return fmt::format(
      "{:<24} {:>8} {:>10} {:>22}{} {:>10}\n", "policy", "budget", "KV", "perplexity +- stderr",
      kl ? fmt::format(" {:>10} {:>10} {:>9}", "KL mean", "KL p99", "same top") : "", "TPOT");
}

std::string perplexity_row(const PerplexityResult& r, bool kl) {
  std::string row =
      fmt::format("{:<24} {:>8} {:>10} {:>10.4f} +- {:<8.4f}", r.policy, r.budget.to_string(),
                  format_bytes(r.kv_resident_bytes), r.ppl, r.ppl_stderr);
  if (kl) row += fmt::format(" {:>10.3g} {:>10.3g} {:>9.3f}", r.kl_mean, r.kl_p99, r.same_top1);
  return row + fmt::format(" {:>10}\n", format_ms(r.tpot_median_ms));
}

int perplexity_reference(std::span<const Contender> contenders) {
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    if (may_be_reference(contenders[i].policy) && contenders[i].budget) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::vector<PerplexityMean> perplexity_means(
    std::span<const Contender> contenders, std::span<const std::vector<PerplexityResult>> results) {
  const int first = perplexity_reference(contenders);
  std::vector<PerplexityMean> means(contenders.size());
  for (std::size_t c = 0; c < contenders.size(); ++c) {
    PerplexityMean& m = means[c];
    std::vector<double> ppl, kl, bytes;
    for (const auto& prompt : results) {
      ppl.push_back(prompt[c].ppl);
      if (prompt[c].kl_mean > 0.0) kl.push_back(prompt[c].kl_mean);
      bytes.push_back(static_cast<double>(prompt[c].kv_resident_bytes));
    }
    m.prompts = static_cast<int>(results.size());
    m.ppl = geometric_mean(ppl);
    m.kl = geometric_mean(kl);
    m.kv_bytes = mean(bytes);
    if (first < 0 || contenders[c].policy == contenders[first].policy) continue;
    for (std::size_t r = 0; r < contenders.size(); ++r) {
      if (contenders[r].policy != contenders[first].policy) continue;
      if (contenders[c].budget && cell_budget(contenders[c]) != cell_budget(contenders[r]))
        continue;
      PerplexityMean::Ratio ratio = kl_ratio(results, c, r);
      ratio.reference_budget = cell_budget(contenders[r]);
      if (ratio.n > 0) m.kl_ratios.push_back(std::move(ratio));
    }
  }
  return means;
}

Json mean_json(const Contender& contender, const PerplexityMean& mean, const std::string& reference,
               bool kl) {
  Json line = {{"prompts", mean.prompts},
               {"policy", contender.policy},
               {"budget", cell_budget(contender)},
               {"ppl_geomean", mean.ppl}};
  if (kl) line["kl_geomean"] = mean.kl;
  line["kv_resident_bytes"] = mean.kv_bytes;
  if (mean.kl_ratios.empty()) return line;
  Json ratios = Json::object();
  for (const auto& r : mean.kl_ratios) {
    ratios[r.reference_budget] = {{"ratio", r.ratio}, {"low", r.low}, {"high", r.high}, {"n", r.n}};
  }
  line["kl_over"] = {{reference, std::move(ratios)}};
  return line;
}

std::string mean_row(const Contender& contender, const PerplexityMean& mean, bool kl) {
  std::string row =
      fmt::format("{:<24} {:>8} {:>10} {:>10.4f}", contender.policy, cell_budget(contender),
                  format_bytes(static_cast<std::int64_t>(mean.kv_bytes)), mean.ppl);
  if (kl) row += fmt::format(" {:>10.3g}", mean.kl);
  for (const auto& r : mean.kl_ratios) {
    row += fmt::format("  {:.3g} ({:.3g} ... {:.3g}){}", r.ratio, r.low, r.high,
                       contender.budget ? "" : " at " + r.reference_budget);
  }
  return row + "\n";
}

}  // namespace qevict::cli
