// The program from outside: what its commands print and how they end.
#include <algorithm>
#include <numeric>
#include <set>

#include "cli_runner.h"
#include "eval/recall_task.h"

namespace qevict {
namespace {

using nlohmann::json;

class CliRun : public CliTest {
 protected:
  // A run whose budget evicts: small local zone, two decode events at least.
  std::vector<std::string> compressed(const std::vector<std::string>& more) {
    std::vector<std::string> all = {
        "run", "-m",           model(),       "-p",  long_text(60), "-n",
        "24",  "--ignore-eos", "--kv-budget", "0.3", "--local",     "8",
    };
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(CliRun, PrintsTheTextAndClosesWithASummaryOnStderr) {
  const CliResult r = cli(compressed({}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_GT(r.out.size(), 1U);
  EXPECT_TRUE(r.out.ends_with('\n'));
  for (const char* part : {"prompt", "24 generated", "TTFT", "TPOT", "tok/s", "held", "peak",
                           "full KV would be", "quantized", "evicted", "promotions"}) {
    EXPECT_NE(r.err.find(part), std::string::npos) << part << "\n" << r.err;
  }
  // Not a terminal: no progress bar, no colour.
  EXPECT_EQ(r.err.find_first_of("\r\x1b"), std::string::npos);
}

// Facts far back in the prompt, asked through the program's own options.
TEST_F(CliRun, AnswersFromFullAndCompressedCaches) {
  RecallShape shape;
  shape.n_tokens = 700;
  RecallPrompt prompt = make_recall_prompt(shape);
  const std::vector<std::vector<std::string>> caches = {
      {"--policy", "full"},
      {"--kv-budget", "0.9", "--quant-share", "1", "--quant-bits", "4"},
      {"--policy", "qevict:kv_budget=0.9,quant_share=1,n_local=8", "--batch-size", "128"}};
  const std::string model = recall_model();
  for (int i = 0; i < 3; ++i) {
    const RecallFact& fact = prompt.facts[i];
    std::vector<TokenId> ids = prompt.tokens;
    ids.insert(ids.end(), {RecallVocabulary::kAsk, fact.key});
    const std::string file = write("ids.json", json(ids).dump());
    for (const std::vector<std::string>& cache : caches) {
      std::vector<std::string> all = {"run", "-m", model, "--prompt-tokens", file,
                                      "-n",  "2",  "-q",  "--json"};
      all.insert(all.end(), cache.begin(), cache.end());
      const CliResult r = cli(all);
      ASSERT_EQ(r.exit_code, 0) << r.err;
      EXPECT_EQ(r.json().at("tokens"), json({fact.values[0], fact.values[1]})) << cache[1];
    }
  }
}

TEST_F(CliRun, QuietSaysNothingOnStderr) {
  const CliResult r = cli(compressed({"--quiet"}));
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.err, "");
}

TEST_F(CliRun, JsonHasTheContractsFieldsAndItsBytesAddUp) {
  const CliResult r = cli(compressed({"--json", "--logprobs", "3"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const json j = r.json();
  EXPECT_EQ(j.at("model"), model());
  EXPECT_EQ(j.at("policy"), "qevict");
  EXPECT_GT(j.at("prompt_tokens"), 100);
  EXPECT_EQ(j.at("generated_tokens"), 24);
  EXPECT_EQ(j.at("tokens").size(), 24U);
  EXPECT_TRUE(j.at("text").is_string());
  EXPECT_EQ(j.at("stop_reason"), "length");
  ASSERT_EQ(j.at("logprobs").size(), 24U);
  for (const json& step : j.at("logprobs")) {
    ASSERT_EQ(step.size(), 3U);
    EXPECT_LE(step[0].at("logprob"), 0.0);
    EXPECT_GE(step[0].at("logprob"), step[1].at("logprob"));
    EXPECT_TRUE(step[0].at("id").is_number_integer());
  }
  const json& t = j.at("timing");
  for (const char* name : {"load_ms", "ttft_ms", "prefill_tok_s"}) EXPECT_GT(t.at(name), 0) << name;
  EXPECT_GT(t.at("tpot_ms").at("median"), 0);
  EXPECT_GE(t.at("tpot_ms").at("p95"), t.at("tpot_ms").at("median"));
  EXPECT_GE(t.at("attention_ms_per_token"), 0);
  EXPECT_GE(t.at("routing_ms_per_event"), 0);
  const json& kv = j.at("kv");
  const json& bytes = kv.at("bytes");
  const long sum = bytes.at("sink").get<long>() + bytes.at("local").get<long>() +
                   bytes.at("full").get<long>() + bytes.at("quantized").get<long>();
  EXPECT_EQ(kv.at("resident_bytes"), sum);
  EXPECT_GT(bytes.at("quantized"), 0);
  EXPECT_GE(kv.at("peak_resident_bytes"), kv.at("resident_bytes"));
  EXPECT_LT(kv.at("resident_bytes"), kv.at("full_cache_bytes"));
  for (const char* name : {"positions", "ledger", "dormant", "scores"}) {
    EXPECT_TRUE(kv.at("metadata_bytes").at(name).is_number()) << name;
  }
  EXPECT_GT(kv.at("workspace_peak_bytes"), 0);
  for (const char* name : {"full", "quantized", "evicted"}) {
    EXPECT_EQ(kv.at("windows").at(name).get<double>() * 2,
              kv.at("windows_total").at(name).get<double>())
        << "two layers: " << name;
  }
  EXPECT_GT(kv.at("windows").at("evicted"), 0);
  for (const char* name : {"events", "promotions", "demotions", "first_demotions", "evictions"}) {
    EXPECT_TRUE(kv.at(name).is_number()) << name;
  }
  EXPECT_GT(j.at("peak_rss_bytes"), 0);
  EXPECT_FALSE(j.at("budget_raised"));
  EXPECT_FALSE(j.at("uncompressed"));
  EXPECT_TRUE(j.at("warnings").empty());
}

TEST_F(CliRun, StreamsTheTextThatJsonReports) {
  const CliResult text = cli(compressed({"-q"}));
  const CliResult object = cli(compressed({"-q", "--json"}));
  // Random weights write bytes that are no UTF-8; JSON has U+FFFD in their place.
  const json expected = {{"text", text.out.substr(0, text.out.size() - 1)}};
  EXPECT_EQ(object.json().at("text"),
            json::parse(expected.dump(-1, ' ', false, json::error_handler_t::replace)).at("text"));
}

TEST_F(CliRun, TakesThePromptFromArgumentFileAndStdinAlike) {
  const std::vector<std::string> common = {"-m", model(), "-n", "8", "--json", "-q"};
  const auto run = [&](std::vector<std::string> how, const std::string& input = "") {
    how.insert(how.begin(), "run");
    how.insert(how.end(), common.begin(), common.end());
    const CliResult r = cli(how, {.input = input});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.json().at("tokens");
  };
  const json expected = run({"-p", "the cat was in"});
  EXPECT_EQ(run({"-f", write("prompt.txt", "the cat was in\n")}), expected);
  EXPECT_EQ(run({"-"}, "the cat was in\n"), expected);
  EXPECT_EQ(run({"-f", "-"}, "the cat was in"), expected);
}

TEST_F(CliRun, AddsNothingToPromptTokens) {
  const std::string ids = write("ids.json", "[1, 20, 30, 40, 50]");
  const CliResult r = cli({"run", "-m", model(), "--prompt-tokens", ids, "-n", "4", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.json().at("prompt_tokens"), 5);
}

TEST_F(CliRun, DecodesAlongForcedTokens) {
  const std::string ids = write("forced.json", "[30, 31, 32, 33, 34, 35]");
  const CliResult all =
      cli({"run", "-m", model(), "-p", "the", "--forced-tokens", ids, "--json", "--logprobs", "2"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(all.json().at("tokens"), json::parse("[30, 31, 32, 33, 34, 35]"));
  EXPECT_EQ(all.json().at("logprobs").size(), 6U);
  const CliResult some =
      cli({"run", "-m", model(), "-p", "the", "--forced-tokens", ids, "-n", "4", "--json"});
  EXPECT_EQ(some.json().at("tokens"), json::parse("[30, 31, 32, 33]"));
}

TEST_F(CliRun, RepeatsATextWithItsSeed) {
  const auto run = [&](const std::string& seed) {
    return cli(compressed({"-q", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--seed", seed}))
        .out;
  };
  const std::string first = run("7");
  EXPECT_EQ(run("7"), first);
  EXPECT_NE(run("8"), first);
}

TEST_F(CliRun, AFullBudgetGivesTheFullCachesTokens) {
  const CliResult whole = cli(compressed({"--json", "--kv-budget=1.0"}));
  EXPECT_EQ(whole.exit_code, 2) << "a repeated option";
  const auto run = [&](const std::string& policy, const std::string& budget) {
    return cli({"run", "-m", model(), "-p", long_text(40), "-n", "20", "--ignore-eos", "--policy",
                policy, "--kv-budget", budget, "--json"})
        .json();
  };
  const json full = run("full", "0.2");
  const json qevict = run("qevict", "100%");
  EXPECT_EQ(full.at("tokens"), qevict.at("tokens"));
  EXPECT_TRUE(qevict.at("uncompressed"));
  EXPECT_EQ(full.at("kv").at("resident_bytes"), full.at("kv").at("full_cache_bytes"));
}

TEST_F(CliRun, MaterialisedAttentionGivesTheSameTokensAndSaysSo) {
  const std::vector<std::string> base = {"run",         "-m", model(), "-p",
                                         long_text(60), "-n", "24",    "--json"};
  for (const char* policy : {"full", "qevict"}) {
    nlohmann::json json[2];
    for (const bool fused : {false, true}) {
      std::vector<std::string> all = base;
      all.insert(all.end(), {"--policy", policy, "--attention", fused ? "fused" : "materialised"});
      json[fused] = cli(all).json();
      EXPECT_EQ(json[fused]["attention"], fused ? "fused" : "materialised");
    }
    EXPECT_EQ(json[0]["tokens"], json[1]["tokens"]);
    EXPECT_EQ(json[0]["kv"]["resident_bytes"], json[1]["kv"]["resident_bytes"]);
  }
}

TEST_F(CliRun, WritesATraceLineForEveryEventAndLayer) {
  const std::string file = path("trace.jsonl");
  const CliResult r = cli(compressed({"--trace", file, "--json"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_FALSE(std::filesystem::exists(file + ".partial"));
  std::istringstream lines(read(file));
  std::vector<json> events;
  for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line));
  // The prompt's event and one after 8 and 16 of the 23 fed tokens, in both layers.
  ASSERT_EQ(events.size(), 6U);
  for (std::size_t i = 0; i < events.size(); ++i) {
    const json& e = events[i];
    EXPECT_EQ(e.at("event"), i / 2);
    EXPECT_EQ(e.at("step"), 8 * (i / 2));
    EXPECT_EQ(e.at("layer"), i % 2);
    EXPECT_EQ(e.at("tokens"), r.json().at("prompt_tokens").get<int>() + e.at("step").get<int>());
    const json& b = e.at("bytes");
    EXPECT_EQ(b.at("total"), b.at("sink").get<long>() + b.at("local").get<long>() +
                                 b.at("full").get<long>() + b.at("quantized").get<long>());
    EXPECT_TRUE(b.at("dormant").is_number());
    std::set<int> seen;
    for (const char* tier : {"full", "quantized", "evicted"}) {
      const auto windows = e.at(tier).get<std::vector<int>>();
      EXPECT_TRUE(std::ranges::is_sorted(windows)) << tier;
      for (const int w : windows) EXPECT_TRUE(seen.insert(w).second) << "window " << w << " twice";
    }
    for (const char* list : {"promoted", "demoted", "reactivated"})
      EXPECT_TRUE(e.at(list).is_array());
    EXPECT_FALSE(e.contains("scores"));
  }
  ASSERT_EQ(cli(compressed({"--trace", file, "--trace-scores", "-q"})).exit_code, 0);
  const std::string text = read(file);
  EXPECT_TRUE(json::parse(text.substr(0, text.find('\n'))).at("scores").is_array());
}

TEST_F(CliRun, TracesIntoPipesAndThroughLinksWithoutReplacingThem) {
  // Behind this name is a plain file, as behind /dev/stderr with 2> FILE.
  const CliResult r = cli(compressed({"-q", "--trace", "/proc/self/fd/2"}));
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_TRUE(json::accept(r.err.substr(0, r.err.find('\n')))) << r.err;
  const std::string target = write("target.jsonl", "old");
  const std::string link = path("link.jsonl");
  std::filesystem::create_symlink(target, link);
  ASSERT_EQ(cli(compressed({"-q", "--trace", link})).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(read(target).starts_with("{\"event\":0"));
}

TEST_F(CliRun, AppliesTheChatTemplate) {
  const auto prompt_tokens = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"run", "-m", model(), "-p", "the cat", "-n", "2", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const CliResult r = cli(all);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.json().at("prompt_tokens").get<int>();
  };
  const int plain = prompt_tokens({});
  const int chat = prompt_tokens({"--chat"});
  EXPECT_GT(chat, plain);
  EXPECT_GT(prompt_tokens({"--chat", "--system", "a dog"}), chat);
}

TEST_F(CliRun, TakesOptionsFromTheEnvironmentUnlessTheyAreGiven) {
  const CliSetup setup{.environment = {"QEVICT_KV_BUDGET=0.5", "QEVICT_N_PREDICT=3"}};
  const json j = cli({"run", "-m", model(), "-p", "the", "--ignore-eos", "--json"}, setup).json();
  EXPECT_EQ(j.at("generated_tokens"), 3);
  EXPECT_EQ(j.at("kv_budget"), "0.5");
  EXPECT_EQ(cli({"run", "-m", model(), "-p", "the", "--ignore-eos", "-n", "5", "--json"}, setup)
                .json()
                .at("generated_tokens"),
            5);
}

TEST_F(CliRun, PolicyParametersWinOverOptions) {
  const json j = cli({"run", "-m", model(), "-p", long_text(60), "-n", "4", "--kv-budget", "0.9",
                      "--policy", "qevict:kv_budget=200tok,window=16,n_local=16", "--json"})
                     .json();
  EXPECT_EQ(j.at("kv_budget"), "200tok");
}

TEST_F(CliRun, CtrlCKeepsThePartialText) {
  TinyModel slow;
  slow.n_layers = 6;
  slow.n_ctx = 1 << 18;
  const std::string file = make_model(slow, "slow.gguf");
  const std::vector<std::string> run = {"run", "-m",     file,           "-p",          "the cat",
                                        "-n",  "200000", "--ignore-eos", "--kv-budget", "256tok"};
  CliSetup setup{.interrupt_after_output = true};
  const CliResult text = cli(run, setup);
  EXPECT_EQ(text.exit_code, 130);
  EXPECT_GT(text.out.size(), 1U);
  EXPECT_NE(text.err.find("interrupted"), std::string::npos) << text.err;
  EXPECT_NE(text.err.find("promotions"), std::string::npos) << "the summary is missing";

  // With --json: interrupted once the trace shows that decoding goes on.
  const std::string trace = path("trace.jsonl");
  std::vector<std::string> object = run;
  object.insert(object.end(), {"--json", "--trace", trace});
  setup.watched_file = trace + ".partial";
  const CliResult json_run = cli(object, setup);
  EXPECT_EQ(json_run.exit_code, 130);
  EXPECT_EQ(json_run.json().at("stop_reason"), "interrupted");
  EXPECT_GT(json_run.json().at("generated_tokens"), 0);
  EXPECT_FALSE(std::filesystem::exists(trace + ".partial"));
  const std::string lines = read(trace);
  ASSERT_TRUE(lines.ends_with('\n'));
  EXPECT_TRUE(json::accept(lines.substr(lines.rfind('\n', lines.size() - 2) + 1)));
}

TEST_F(CliRun, StopsQuietlyWhenNobodyReads) {
  const CliResult r = cli(compressed({}), {.closed_stdout = true});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.err, "");
}

TEST_F(CliRun, ReportsAFullDisk) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  const CliResult out = cli(compressed({"-q"}), {.stdout_path = "/dev/full"});
  EXPECT_EQ(out.exit_code, 1);
  EXPECT_NE(out.err.find("standard output"), std::string::npos) << out.err;
  const CliResult trace = cli(compressed({"-q", "--trace", "/dev/full"}));
  EXPECT_EQ(trace.exit_code, 1);
  EXPECT_NE(trace.err.find("(/dev/full)"), std::string::npos) << trace.err;
}

}  // namespace
}  // namespace qevict
