#include "eval/report.h"

#include <fmt/format.h>

#include "eval/report_parts.h"
#include "eval/report_style.h"
#include "eval/svg.h"

namespace qevict {
namespace {

std::string fact(const std::string& name, const std::string& value) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escape_html(value));
}

std::string protocol_words(Protocol protocol) {
  switch (protocol) {
    case Protocol::WholePrompt:
      return "whole prompt: the cache is compressed after the question was read";
    case Protocol::ContextOnly:
      return "context only: the cache is compressed before the question comes";
  }
  return "";
}

std::string facts(const RunSettings& s, const Summary& summary) {
  std::string options;
  for (const auto& [key, value] : s.cache_options) options += key + "=" + value + " ";
  std::string tasks;
  for (const auto& task : s.tasks) {
    tasks += fmt::format("{}{} ({})", tasks.empty() ? "" : ", ", task.name, task.samples);
  }
  return "<dl>\n" +
         fact("model",
              fmt::format("{} ({})", s.model, bytes_text(static_cast<double>(s.model_bytes)))) +
         fact("protocol", protocol_words(s.protocol)) + fact("tasks (samples)", tasks) +
         fact("context", fmt::format("{} tokens, prompt and answer", s.context)) +
         fact("seed", std::to_string(s.seed)) +
         fact("chat template", s.chat_template ? "the model's" : "the model has none") +
         (options.empty() ? "" : fact("cache options", options)) +
         fact("cells", fmt::format("{} of {}", summary.cells, summary.planned)) +
         fact("written by", fmt::format("qevict {}, kernels {}", s.version, s.isa)) + "</dl>\n";
}

std::string reading_notes(const Summary& summary) {
  std::string notes = R"(<details><summary>How to read this</summary><ul>
<li>Scores are 0 to 100, with the standard error of their mean over the samples.</li>
<li>KV bytes are what the allocator held at the end of the answer, grids included; metadata
(positions, scores, dormant codes) stands beside it. &ldquo;Of full&rdquo; is the share of an fp16 cache of the
same positions.</li>
<li>All policies answer the same samples greedily, with the same rules for where an answer ends.</li>
<li><span class="mark">over budget</span>: in some samples the policy needed more than its budget, or held more;
such rows make no claim at equal bytes.</li>
<li><span class="mark">full cache fails</span>: the model cannot do the task with its full cache, so the scores
say nothing about a cache (below 20, or below 10 where overlap is scored). Such tasks are not averaged.</li>
<li>Policies that take no budget (the full cache, quantisers) stand at their own operating point.</li>
)";
  if (!summary.reference.empty()) {
    notes += fmt::format(
        "<li>Differences are {} minus the rival on the same samples; the interval is a paired "
        "bootstrap "
        "({} resamples, seed {}). Coloured: the interval does not contain 0.</li>\n",
        escape_html(summary.reference), kBootstrapResamples, kBootstrapSeed);
  }
  return notes + "</ul></details>\n";
}

std::string task_sections(const Summary& summary) {
  std::string out;
  for (const TaskTable& table : summary.tasks) {
    out += fmt::format(
        "<details{}><summary><b>{}</b> <span class=\"dim\">metric "
        "{}{}</span></summary>\n{}{}</details>\n",
        summary.tasks.size() <= 3 ? " open" : "", escape_html(table.task),
        escape_html(table.metric), table.full_fails ? ", full cache fails" : "",
        task_table(table, summary.reference), comparison_table(table, summary.reference));
  }
  return out;
}

}  // namespace

std::string report_html(const RunSettings& settings, const Summary& summary,
                        std::span<const CellResult> cells,
                        std::span<const std::string> diagnostics_lines) {
  std::string body = "<h1>Evaluation</h1>\n" + facts(settings, summary) + reading_notes(summary);
  body += "<h2>Scores</h2>\n" + overview_tables(settings, summary);
  body += "<h2>Score over bytes</h2>\n" + score_plots(settings, summary);
  if (summary.average && !summary.average->comparisons.empty()) {
    body += fmt::format(
        "<h2>{} beside its rivals</h2>\n<p class=\"dim\">Average over the tasks that the "
        "full cache can do, each counting alike.</p>\n{}",
        escape_html(summary.reference), comparison_table(*summary.average, summary.reference));
  }
  if (const std::string maps = needle_maps(settings, cells); !maps.empty()) {
    body += "<h2>Needle by depth and length</h2>\n" + maps;
  }
  body += diagnostics_section(settings, diagnostics_lines);
  body += "<h2>Tasks</h2>\n" + task_sections(summary);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>qevict eval: {}</title>\n<style>{}</style></head>\n<body>\n{}</body></html>\n",
      escape_html(settings.model), kReportStyle, body);
}

}  // namespace qevict
