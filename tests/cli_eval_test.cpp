// `qevict eval` from outside, on the recall model and data of our own.
#include <map>

#include "cli_runner.h"

namespace qevict {
namespace {

using nlohmann::json;

class CliEval : public CliTest {
 protected:
  // A context that the recall model's vocabulary can say; the codes are in it.
  std::string write_samples(int n, const std::string& name = "mine.jsonl") const {
    std::string lines;
    for (int i = 0; i < n; ++i) {
      std::string context;
      for (int k = 0; k < 12; ++k) context += long_text(3 + (i + k) % 3);
      lines +=
          json{{"id", "s" + std::to_string(i)}, {"context", context},   {"question", "the dog was"},
               {"answers", {"a", "e"}},         {"max_new_tokens", 12}, {"metric", "all"}}
              .dump() +
          "\n";
    }
    return write(name, lines);
  }
  std::vector<std::string> command(const std::string& out,
                                   const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"eval",
                                      "-m",
                                      model(),
                                      "--tasks",
                                      "file:" + path("mine.jsonl"),
                                      "--policies",
                                      "full,qevict,qevict:quant_share=0,n_local=16",
                                      "--budgets",
                                      "0.3,0.5",
                                      "-q",
                                      "--out",
                                      path(out)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<json> results(const std::string& file) const {
    CliResult lines;
    lines.out = read(path(file));
    return lines.json_lines();
  }
  // Lines without their times, in any order; each once.
  std::map<std::string, int> without_times(const std::string& file) const {
    std::map<std::string, int> counts;
    for (json line : results(file)) {
      line.erase("seconds");
      ++counts[line.dump()];
    }
    return counts;
  }
};

TEST_F(CliEval, WritesResultsSummaryAndReport) {
  write_samples(3);
  const CliResult r = cli(command("out"));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.err, "");
  EXPECT_NE(r.out.find("qevict:quant_share=0,n_local=16"), std::string::npos) << r.out;
  const std::vector<json> lines = results("out/results.jsonl");
  ASSERT_EQ(lines.size(), 15U);  // 3 samples, full once, two policies at two budgets
  for (const json& line : lines) {
    for (const char* field :
         {"task", "id", "policy", "budget", "protocol", "score", "prediction", "kv_resident_bytes",
          "prompt_tokens", "generated_tokens", "seconds", "seed", "over_budget", "kv_budget_bytes",
          "metadata_bytes", "context", "model"}) {
      EXPECT_TRUE(line.contains(field)) << field;
    }
    EXPECT_EQ(line["budget"].is_null(), line["policy"] == "full");
    EXPECT_EQ(line["protocol"], "whole");
    EXPECT_EQ(line["seed"], 42);
    EXPECT_GT(line["kv_resident_bytes"], 0);
    EXPECT_LE(line["generated_tokens"], 12);
  }
  const json summary = json::parse(read(path("out/summary.json")));
  const json& task = summary.at("file:" + path("mine.jsonl"));
  EXPECT_EQ(task.at("full").at("null").at("n"), 3);
  EXPECT_EQ(task.at("qevict").at("0.3").at("n"), 3);
  EXPECT_LT(task.at("qevict").at("0.3").at("kv_bytes"), task.at("full").at("null").at("kv_bytes"));
  for (const char* key : {"score", "n", "stderr", "kv_bytes"}) {
    EXPECT_TRUE(task.at("qevict").at("0.5").contains(key)) << key;
  }
  const std::string html = read(path("out/report.html"));
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  EXPECT_NE(html.find("<svg"), std::string::npos);
  for (const char* outside : {"http:", "https:", "src=", "@import", "url("}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
}

TEST_F(CliEval, AKilledRunContinuesAsIfNothingHadHappened) {
  write_samples(60);
  ASSERT_EQ(cli(command("whole")).exit_code, 0);
  const auto whole = without_times("whole/results.jsonl");
  const CliResult killed = cli(command("out"), {.interrupt_after_output = true,
                                                .watched_file = path("out/results.jsonl"),
                                                .signal = SIGKILL});
  ASSERT_EQ(killed.exit_code, 128 + SIGKILL);
  const std::string before = read(path("out/results.jsonl"));
  EXPECT_LT(without_times("out/results.jsonl").size(), whole.size());
  // A kill in the middle of a write.
  std::ofstream(path("out/results.jsonl"), std::ios::app) << before.substr(0, 70);
  const CliResult resumed = cli(command("out", {"--resume"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(read(path("out/results.jsonl")).starts_with(before)) << "finished cells were redone";
  EXPECT_EQ(without_times("out/results.jsonl"), whole);
  EXPECT_TRUE(std::filesystem::exists(path("out/report.html")));
}

TEST_F(CliEval, CtrlCKeepsWhatIsFinished) {
  write_samples(60);
  const CliResult r = cli(
      command("out"), {.interrupt_after_output = true, .watched_file = path("out/results.jsonl")});
  EXPECT_EQ(r.exit_code, 130);
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  EXPECT_NE(r.err.find("--resume"), std::string::npos) << r.err;
  EXPECT_GE(results("out/results.jsonl").size(), 5U);
}

TEST_F(CliEval, ShardsAreMergedFromOneFolderOrSeveral) {
  write_samples(4);
  ASSERT_EQ(cli(command("whole")).exit_code, 0);
  const auto whole = without_times("whole/results.jsonl");
  ASSERT_EQ(cli(command("a", {"--shard", "1/3"})).exit_code, 0);
  ASSERT_EQ(cli(command("a", {"--shard", "2/3"})).exit_code, 0);
  ASSERT_EQ(cli(command("b", {"--shard", "3/3"})).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(path("a/report.html")));
  const CliResult part = cli({"eval", "--merge", path("a"), "--out", path("part")});
  EXPECT_EQ(part.exit_code, 0) << part.err;
  EXPECT_NE(part.err.find("cells are there"), std::string::npos) << part.err;
  const CliResult merged = cli({"eval", "--merge", path("a"), path("b"), "-q"});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_EQ(merged.err, "");
  EXPECT_EQ(without_times("a/results.jsonl"), whole);
  const auto scores = [&](const std::string& folder) {
    json summary = json::parse(read(path(folder + "/summary.json")));
    for (auto& task : summary)
      for (auto& policy : task)
        for (auto& budget : policy) budget.erase("seconds");
    return summary;
  };
  EXPECT_EQ(scores("a"), scores("whole"));
  // Again: the joined file and the shards' hold the same cells.
  ASSERT_EQ(cli({"eval", "--merge", path("a")}).exit_code, 0);
  EXPECT_EQ(without_times("a/results.jsonl"), whole);
}

TEST_F(CliEval, MergeRefusesAnotherRunAndDifferentAnswers) {
  write_samples(2);
  ASSERT_EQ(cli(command("a", {"--shard", "0/2"})).exit_code, 0);
  ASSERT_EQ(cli(command("b", {"--shard", "1/2", "--seed", "7"})).exit_code, 0);
  const CliResult other = cli({"eval", "--merge", path("a"), path("b")});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("seed: 7, was 42"), std::string::npos) << other.err;
  std::string changed = read(path("a/results-0-of-2.jsonl"));
  changed.replace(changed.find("\"prediction\":\""), 14, "\"prediction\":\"x");
  std::filesystem::create_directory(path("c"));
  write("c/results.jsonl", changed);
  write("c/run.json", read(path("a/run.json")));
  const CliResult differ = cli({"eval", "--merge", path("a"), path("c")});
  EXPECT_EQ(differ.exit_code, 2);
  EXPECT_NE(differ.err.find("different answers"), std::string::npos) << differ.err;
  EXPECT_EQ(cli({"eval", "--merge", path("none")}).exit_code, 2);
}

TEST_F(CliEval, ResumeRefusesOtherSettingsAndSaysWhich) {
  write_samples(2);
  ASSERT_EQ(cli(command("out")).exit_code, 0);
  const CliResult again = cli(command("out"));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again.err;
  EXPECT_EQ(cli(command("out", {"--resume"})).exit_code, 0);
  const CliResult window = cli(command("out", {"--resume", "--window", "4", "--context", "2K"}));
  EXPECT_EQ(window.exit_code, 2);
  EXPECT_NE(window.err.find("cache_options"), std::string::npos) << window.err;
  EXPECT_NE(window.err.find("context: 2048, was 4096"), std::string::npos) << window.err;
  write_samples(3);
  const CliResult data = cli(command("out", {"--resume"}));
  EXPECT_EQ(data.exit_code, 2);
  EXPECT_NE(data.err.find("digest"), std::string::npos) << data.err;
  // The threads are no setting.
  write_samples(2);
  EXPECT_EQ(cli(command("out", {"--resume", "-t", "2"})).exit_code, 0);
}

TEST_F(CliEval, MistakesAreOneLine) {
  write_samples(1);
  const std::string file = "file:" + path("mine.jsonl");
  const std::string out = path("out");
  write("twice.jsonl", read(path("mine.jsonl")) + read(path("mine.jsonl")));
  write("plain", "x");
  const std::vector<std::pair<std::vector<std::string>, int>> mistakes = {
      {{"--out", out}, 2},
      {{"--tasks", file}, 2},
      {{"--tasks", "magic", "--out", out}, 2},
      {{"--tasks", file + "," + file, "--out", out}, 2},
      {{"--tasks", "file:" + path("none.jsonl"), "--out", out}, 2},
      {{"--tasks", "file:" + path("twice.jsonl"), "--out", out}, 2},
      {{"--tasks", file, "--out", out, "--policies", "magic"}, 2},
      {{"--tasks", file, "--out", out, "--policies", "qevict,qevict"}, 2},
      {{"--tasks", file, "--out", out, "--policies", "full:window=8"}, 2},
      {{"--tasks", file, "--out", out, "--budgets", "0.1,10%"}, 2},
      {{"--tasks", file, "--out", out, "--budgets", "7"}, 2},
      {{"--tasks", file, "--out", out, "--shard", "3/2"}, 2},
      {{"--tasks", file, "--out", out, "--protocol", "both"}, 2},
      {{"--tasks", file, "--out", out, "--samples", "0"}, 2},
      {{"--tasks", file, "--out", out, "-c", "64"}, 2},
      {{"--merge", out, "--tasks", file}, 2},
      {{"--tasks", file, "--out", path("plain/out")}, 1},
  };
  for (const auto& [words, code] : mistakes) {
    std::vector<std::string> command = {"eval", "-m", model()};
    command.insert(command.end(), words.begin(), words.end());
    const CliResult r = cli(command);
    EXPECT_EQ(r.exit_code, code) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_TRUE(r.err.starts_with("qevict: error: ")) << r.err;
    EXPECT_EQ(r.out, "");
  }
}

TEST_F(CliEval, BothProtocolsRun) {
  write_samples(2);
  const CliResult r = cli(command("out", {"--protocol", "context"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const json& line : results("out/results.jsonl")) EXPECT_EQ(line["protocol"], "context");
}

}  // namespace
}  // namespace qevict
