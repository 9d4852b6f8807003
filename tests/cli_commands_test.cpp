// The other commands from outside: chat, info, policies, bench, help and version.
#include <set>

#include "cli_runner.h"

namespace qevict {
namespace {

using nlohmann::json;

class CliCommands : public CliTest {};

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// The number behind the n-th "[" of the lines that close a turn: tokens read in that turn.
int tokens_read(const std::string& err, int turn) {
  std::size_t at = 0;
  for (int i = 0; i <= turn; ++i) at = err.find('[', at) + 1;
  return at == 0 ? -1 : std::atoi(err.c_str() + at);
}

TEST_F(CliCommands, ChatKeepsItsCacheBetweenTurns) {
  const CliResult r = cli({"chat", "-m", model(), "-n", "6", "--ignore-eos", "--system", "the dog"},
                          {.input = "the cat was in a\n/stats\nand he was in\n"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(count(r.err, " + 6 tokens"), 2) << r.err;
  EXPECT_NE(r.err.find("windows per layer"), std::string::npos) << "/stats";
  EXPECT_GT(r.out.size(), 2U);
  // System message and first question come once: the second turn reads less than the first.
  EXPECT_GT(tokens_read(r.err, 1), 0);
  EXPECT_LT(tokens_read(r.err, 1), tokens_read(r.err, 0));
}

TEST_F(CliCommands, ChatTurnsAfterClearAreLikeTheFirst) {
  const CliResult r = cli({"chat", "-m", model(), "-n", "8", "--ignore-eos"},
                          {.input = "the cat\n/clear\nthe cat\n/exit\nnever read\n"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(count(r.err, " + 8 tokens"), 2) << r.err;
  EXPECT_EQ(tokens_read(r.err, 0), tokens_read(r.err, 1));
  ASSERT_EQ(r.out.size() % 2, 0U) << r.out;
  EXPECT_EQ(r.out.substr(0, r.out.size() / 2), r.out.substr(r.out.size() / 2));
}

TEST_F(CliCommands, ChatStopsAnAnswerOnCtrlC) {
  TinyModel slow;
  slow.n_layers = 6;
  slow.n_ctx = 1 << 18;
  const CliResult r = cli({"chat", "-m", make_model(slow, "slow.gguf"), "-n", "200000",
                           "--ignore-eos", "--kv-budget", "256tok"},
                          {.input = "the cat\n", .interrupt_after_output = true});
  EXPECT_EQ(r.exit_code, 130) << r.err;
  EXPECT_NE(r.err.find("(interrupted)"), std::string::npos) << r.err;
}

TEST_F(CliCommands, ChatFailsWhenAScriptsQuestionCannotBeAnswered) {
  const CliResult r = cli({"chat", "-m", model(), "-c", "64"}, {.input = long_text(80) + "\n"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("context"), std::string::npos) << r.err;
}

TEST_F(CliCommands, ChatFailsOnAQuestionThatIsNoText) {
  const CliResult r = cli({"chat", "-m", model()}, {.input = "caf\xe9 au lait\n"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("UTF-8"), std::string::npos) << r.err;
}

TEST_F(CliCommands, ChatNeedsATemplate) {
  TinyModel plain;
  plain.without = {"tokenizer.chat_template"};
  const CliResult r = cli({"chat", "-m", make_model(plain, "plain.gguf")}, {.input = "the\n"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("chat template"), std::string::npos) << r.err;
}

TEST_F(CliCommands, InfoSaysWhatABudgetHolds) {
  const CliResult r =
      cli({"info", model(), "--ctx", "1K,2048", "--kv-budget", "0.2,512tok", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const json j = r.json();
  EXPECT_EQ(j.at("architecture"), "llama");
  EXPECT_EQ(j.at("layers"), 2);
  EXPECT_EQ(j.at("kv_heads"), 2);
  EXPECT_EQ(j.at("head_dim"), 32);
  EXPECT_EQ(j.at("kv_bytes_per_token"), 4 * 2 * 32 * 2);
  ASSERT_EQ(j.at("budgets").size(), 4U);
  // 1024 tokens at 0.2: 204, of which 204 - 5 - 32 = 167 for the history; a token of a layer is 256
  // bytes, a Full window 2048, a Quantized one 256 + 256 + 64 = 576.
  const json& row = j.at("budgets")[0];
  EXPECT_EQ(row.at("context"), 1024);
  EXPECT_EQ(row.at("full_cache_bytes"), 1024 * 512);
  EXPECT_EQ(row.at("budget_bytes"), 204 * 512);
  EXPECT_EQ(row.at("windows").at("full"), 6);        // .3 * 167 * 256 / 2048 = 6.26
  EXPECT_EQ(row.at("windows").at("quantized"), 51);  // .7 * 167 * 256 / 576 = 51.96
  EXPECT_EQ(row.at("windows").at("history"), 123);   // (1024 - 37) / 8
  EXPECT_DOUBLE_EQ(row.at("evicted_share"), (123.0 - 57.0) / 123.0);
  const CliResult table = cli({"info", model()});
  EXPECT_EQ(table.exit_code, 0);
  for (const char* part : {"llama", "4096", "512 bytes a token", "K_f", "K_q"}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << "\n" << table.out;
  }
}

TEST_F(CliCommands, InfoReadsNoWeights) {
  TinyModel holed;
  holed.without = {"blk.1.attn_k.weight"};
  const CliResult r = cli({"info", make_model(holed, "holed.gguf"), "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_GT(r.json().at("parameters"), 0);
  EXPECT_GT(r.json().at("weight_bytes"), 0);
  EXPECT_EQ(r.json().at("quantisation"), "f32");
}

TEST_F(CliCommands, PoliciesListsTheRegistry) {
  const CliResult text = cli({"policies"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_NE(text.out.find("qevict"), std::string::npos);
  const json list = cli({"policies", "--json"}).json();
  ASSERT_TRUE(list.is_array());
  for (const json& policy : list) {
    for (const char* key : {"name", "paper", "parameters"}) EXPECT_TRUE(policy.at(key).is_string());
    EXPECT_NE(text.out.find(policy.at("name").get<std::string>()), std::string::npos);
  }
}

// A roofline says what a step reads and how fast; kv_bytes of the cell's cache.
void check_roofline(const json& line, std::int64_t least_kv, std::int64_t most_kv) {
  const json& roofline = line.at("roofline");
  EXPECT_GT(roofline.at("weight_bytes"), 100000);
  EXPECT_GE(roofline.at("kv_bytes"), least_kv);
  EXPECT_LE(roofline.at("kv_bytes"), most_kv);
  EXPECT_GT(roofline.at("stream_gb_s"), 0);
  const double bytes =
      roofline.at("weight_bytes").get<double>() + roofline.at("kv_bytes").get<double>();
  const double gb_s = bytes / line.at("tpot_ms").at("median").get<double>() * 1e-6;
  EXPECT_NEAR(roofline.at("gb_s").get<double>(), gb_s, 1e-6 * gb_s);
  EXPECT_NEAR(roofline.at("share").get<double>(), gb_s / roofline.at("stream_gb_s").get<double>(),
              1e-6);
}

TEST_F(CliCommands, BenchDecodePrintsALineForEachPolicyAndDepth) {
  const CliResult r = cli({"bench", "decode", "-m", model(), "--depths", "0,300", "--policies",
                           "full,qevict:window=4,n_local=8", "-n", "5", "-q"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto lines = r.json_lines();
  ASSERT_EQ(lines.size(), 4U);
  for (const json& line : lines) {
    EXPECT_EQ(line.at("bench"), "decode");
    EXPECT_EQ(line.at("batch"), 1);
    EXPECT_EQ(line.at("n"), 5);
    EXPECT_EQ(line.at("synthetic"), false);
    EXPECT_LE(line.at("tpot_ms").at("min"), line.at("tpot_ms").at("median"));
    EXPECT_LE(line.at("tpot_ms").at("median"), line.at("tpot_ms").at("p95"));
    for (const char* key :
         {"threads", "attention_ms", "kv_bytes", "peak_rss_bytes", "prefill_tok_s"}) {
      EXPECT_GT(line.at(key), 0) << key;
    }
  }
  EXPECT_EQ(lines[2].at("ctx"), 300);
  EXPECT_EQ(lines[2].at("policy"), "full");
  EXPECT_EQ(lines[2].at("kv_bytes"), 306 * 512);
  check_roofline(lines[2], 302 * 512, 306 * 512);
  EXPECT_LT(lines[3].at("kv_bytes"), lines[2].at("kv_bytes"));
  EXPECT_EQ(lines[3].at("policy"), "qevict:window=4,n_local=8");
}

TEST_F(CliCommands, BenchDecodeFillsASyntheticCache) {
  const CliResult r = cli({"bench", "decode", "-m", model(), "--depths", "3000", "--policies",
                           "full,qevict", "-n", "5", "-q", "--synthetic-cache"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto lines = r.json_lines();
  ASSERT_EQ(lines.size(), 2U);
  for (const json& line : lines) {
    EXPECT_EQ(line.at("synthetic"), true);
    EXPECT_FALSE(line.contains("prefill_tok_s"));
    check_roofline(line, line.at("kv_bytes").get<std::int64_t>() - 8 * 512, line.at("kv_bytes"));
  }
  EXPECT_EQ(lines[0].at("kv_bytes"), 3006 * 512);
  EXPECT_LT(lines[1].at("kv_bytes"), 3006 * 512 / 4);
}

TEST_F(CliCommands, BenchBatchDecodesSequencesTogether) {
  for (const bool synthetic : {false, true}) {
    std::vector<std::string> arguments = {"bench",      "batch",       "-m",  model(), "--batch",
                                          "3",          "--prompt",    "100", "--gen", "20",
                                          "--policies", "full,qevict", "-q"};
    if (synthetic) arguments.emplace_back("--synthetic-cache");
    const CliResult r = cli(arguments);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const auto lines = r.json_lines();
    ASSERT_EQ(lines.size(), 2U);
    for (const json& line : lines) {
      EXPECT_EQ(line.at("bench"), "batch");
      EXPECT_EQ(line.at("ctx"), 100);
      EXPECT_EQ(line.at("batch"), 3);
      EXPECT_EQ(line.at("n"), 20);
      EXPECT_EQ(line.at("synthetic"), synthetic);
      EXPECT_EQ(line.contains("prefill_tok_s"), !synthetic);
      EXPECT_EQ(line.at("full_cache_bytes"), 3 * 120 * 512);
      for (const char* key : {"threads", "tok_s", "attention_ms", "peak_rss_bytes"}) {
        EXPECT_GT(line.at(key), 0) << key;
      }
      // No step takes less than the fastest.
      EXPECT_LE(line.at("tok_s").get<double>(),
                3000.0 / line.at("tpot_ms").at("min").get<double>() * 1.0001);
      check_roofline(line, 3 * 40 * 512, 3 * 120 * 512);
    }
    EXPECT_EQ(lines[0].at("kv_bytes"), 3 * 120 * 512);
    EXPECT_LT(lines[1].at("kv_bytes"), lines[0].at("kv_bytes"));
  }
}

TEST_F(CliCommands, BenchPrefillMeasuresPrompts) {
  const CliResult r = cli({"bench", "prefill", "-m", model(), "--depths", "64", "--policies",
                           "qevict", "-n", "2", "-q"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.json().at("bench"), "prefill");
  EXPECT_GT(r.json().at("prefill_tok_s"), 0);
  EXPECT_GT(r.json().at("ttft_ms").at("median"), 0);
}

TEST_F(CliCommands, BenchReportsThePeakMemoryOfEachCellAlone) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep freed memory";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "sanitizers keep freed memory";
#endif
#endif
  if (!std::ofstream("/proc/self/clear_refs")) GTEST_SKIP() << "needs /proc/self/clear_refs";
  const CliResult r =
      cli({"bench", "prefill", "-m", model(), "--depths", "4000,1", "--policies", "full", "-q"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto lines = r.json_lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_LT(lines[1].at("peak_rss_bytes"), lines[0].at("peak_rss_bytes"));
}

TEST_F(CliCommands, BenchKernelsMeasuresEveryFormatAndSetBesideGgml) {
  const CliResult r = cli({"bench", "kernels", "--hot", "--head-dim", "32", "--group", "2",
                           "--tokens", "512", "--prefill-tokens", "40", "-n", "2", "-q"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  std::set<std::string> sets;
  std::set<std::string> decoded;  // format/set
  for (const json& line : r.json_lines()) {
    EXPECT_EQ(line.at("bench"), "kernels");
    EXPECT_EQ(line.at("n"), 2);
    const std::string isa = line.at("isa");
    if (line.at("kernel") == "prefill") {
      EXPECT_GT(line.at("gflop_s").at("median"), 0);
      sets.insert(isa);
      continue;
    }
    decoded.insert(line.at("format").get<std::string>() + "/" + isa);
    EXPECT_GT(line.at("ns_per_token_head").at("min"), 0);
    EXPECT_GT(line.at("gb_s"), 0);
    EXPECT_GT(line.at("roofline_share"), 0);
    if (isa == "ggml") {
      EXPECT_EQ(line.at("bytes_per_token_head"), 128);
    } else {
      EXPECT_GT(line.at("times_faster_than_ggml"), 0);
    }
  }
  EXPECT_FALSE(sets.empty());
  EXPECT_TRUE(decoded.contains("f16/ggml"));
  for (const std::string& isa : sets) {
    for (const char* format : {"full/", "int2/", "int4/"}) {
      EXPECT_TRUE(decoded.contains(format + isa)) << format << isa;
    }
  }
}

TEST_F(CliCommands, BenchRefusesDepthsBeyondTheContextBeforeItStarts) {
  const CliResult r = cli({"bench", "decode", "-m", model(), "--depths", "0,8192"});
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("8192"), std::string::npos) << r.err;
  const CliResult batch =
      cli({"bench", "batch", "-m", model(), "--prompt", "100", "--gen", "4000"});
  EXPECT_EQ(batch.exit_code, 2);
  EXPECT_NE(batch.err.find("--gen"), std::string::npos) << batch.err;
}

TEST_F(CliCommands, BenchGoesAsDeepAsTheMeasuredStepsAllow) {
  const CliResult r = cli({"bench", "decode", "-m", model(), "--depths", "4k", "-n", "5",
                           "--policies", "qevict", "--synthetic-cache"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.json().at("ctx"), 4096 - 6);
  EXPECT_NE(r.err.find("4090"), std::string::npos) << r.err;
}

TEST_F(CliCommands, EveryCommandHasHelpWithAnExample) {
  const std::vector<std::vector<std::string>> commands = {{},
                                                          {"run"},
                                                          {"chat"},
                                                          {"info"},
                                                          {"pull"},
                                                          {"policies"},
                                                          {"bench"},
                                                          {"bench", "decode"},
                                                          {"bench", "prefill"},
                                                          {"bench", "batch"}};
  for (std::vector<std::string> command : commands) {
    const std::string name = command.empty() ? "qevict" : command.back();
    command.push_back("--help");
    const CliResult r = cli(command);
    EXPECT_EQ(r.exit_code, 0) << name;
    EXPECT_EQ(r.err, "") << name;
    EXPECT_NE(r.out.find("Example"), std::string::npos) << name << "\n" << r.out;
  }
}

TEST_F(CliCommands, VersionNamesWhatItWasBuiltFrom) {
  const CliResult r = cli({"--version"});
  EXPECT_EQ(r.exit_code, 0);
  for (const char* part : {"qevict ", "ggml", "llama", "CPU features", "kernels: "}) {
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
  }
}

}  // namespace
}  // namespace qevict
