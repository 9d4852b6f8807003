#include "eval/report.h"

#include <gtest/gtest.h>

#include "eval/report_parts.h"

namespace qevict {
namespace {

KvBudget ratio(double value) { return {KvBudget::Unit::Ratio, value}; }

RunSettings make_settings() {
  RunSettings s;
  s.model = "<model>.gguf";
  s.tasks = {{"needle", 2, ""}, {"weak", 2, ""}};
  s.policies = {{"full", std::nullopt}, {"qevict", ratio(0.1)}, {"snapkv:a=<1>", ratio(0.1)}};
  return s;
}

std::vector<CellResult> make_cells() {
  std::vector<CellResult> cells;
  for (const auto& task : make_settings().tasks) {
    for (const auto& policy : make_settings().policies) {
      for (const char* depth : {"0", "100"}) {
        CellResult c;
        c.task = task.name;
        c.id = std::string("length=1024,depth=") + depth + "%";
        c.policy = policy.policy;
        c.budget = policy.budget;
        c.metric = "all";
        c.score = task.name == "weak" ? 0.0 : policy.budget ? 0.5 : 1.0;
        c.full_cache_bytes = 1 << 20;
        c.kv_resident_bytes = policy.budget ? 104857 : 1 << 20;
        c.over_budget = policy.policy.starts_with("snapkv");
        cells.push_back(std::move(c));
      }
    }
  }
  return cells;
}

std::string make_report(std::span<const std::string> diagnostics = {}) {
  const RunSettings settings = make_settings();
  const std::vector<CellResult> cells = make_cells();
  return report_html(settings, summarise(settings, cells), cells, diagnostics);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Report, MarksWhatMakesNoClaim) {
  const std::string html = make_report();
  EXPECT_TRUE(contains(html, "full cache fails</span>"));
  EXPECT_TRUE(contains(html, "over budget</span>"));
  EXPECT_TRUE(contains(html, "100.0 <span class=\"se\">&plusmn;0.0</span>"));
  EXPECT_TRUE(contains(html, "10.0&thinsp;%"));
  EXPECT_TRUE(contains(html, "102.40 KiB"));
  // The task that says nothing has no best; equal scores differ by 0.0, without a sign.
  EXPECT_FALSE(contains(html, "<td class=\"best\">0.0"));
  EXPECT_TRUE(contains(html, "<td>0.0</td><td>0.0 &hellip; 0.0</td>"));
  EXPECT_TRUE(contains(html, "title=\"one of the two held more"));
}

TEST(Report, EscapesNamesAndLoadsNothing) {
  const std::string html = make_report();
  EXPECT_FALSE(contains(html, "a=<1>"));
  EXPECT_TRUE(contains(html, "snapkv:a=&lt;1&gt;"));
  EXPECT_TRUE(contains(html, "&lt;model&gt;.gguf"));
  for (const char* outside : {"http:", "https:", "src=", "<script", "@import", "url("}) {
    EXPECT_FALSE(contains(html, outside)) << outside;
  }
}

TEST(Report, NeedlesBecomeAMapARow) {
  const std::string maps = needle_maps(make_settings(), make_cells());
  EXPECT_TRUE(contains(maps, ">qevict at 0.1<"));
  EXPECT_TRUE(contains(maps, ">100 %<"));
  EXPECT_TRUE(contains(maps, ">1024<"));
  std::vector<CellResult> cells = make_cells();
  for (CellResult& c : cells) c.id = "7";
  EXPECT_EQ(needle_maps(make_settings(), cells), "");
}

TEST(Report, DiagnosticsAreAveragedOverSamplesByEvent) {
  const std::vector<std::string> lines = {
      R"({"task":"needle","id":"a","policy":"qevict","budget":0.1,"fmm":0.25,"churn":0.5,"event_steps":[0,8],"per_event":{"share_local":[0.5,0.25],"share_full":[0.25,0.25],"share_quantized":[0.25,0.25],"share_evicted":[0.0,0.25]}})",
      R"({"task":"needle","id":"b","policy":"qevict","budget":0.1,"fmm":0.75,"churn":null})",
      "not a line"};
  const std::string html = make_report(lines);
  EXPECT_TRUE(contains(html, "What the caches missed"));
  EXPECT_TRUE(contains(html, "<td>50.0&thinsp;%</td>"));  // FMM of 0.25 and 0.75
  EXPECT_TRUE(contains(html, "<td>0.5</td>"));            // churn of the one that has it
  EXPECT_TRUE(contains(html, "<polygon"));
  EXPECT_FALSE(contains(make_report(), "What the caches missed"));
}

}  // namespace
}  // namespace qevict
