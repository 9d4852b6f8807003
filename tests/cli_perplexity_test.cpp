// qevict perplexity from outside.
#include <cmath>

#include "cli_runner.h"

namespace qevict {
namespace {

using nlohmann::json;

class CliPerplexity : public CliTest {};

TEST_F(CliPerplexity, ComparesPoliciesWithTheFullCacheAlongAText) {
  const std::string text = write("text.txt", long_text(300));
  const CliResult r = cli({"perplexity", "-m", model(), "-f", text, "--prompt", "200", "--continue",
                           "24", "--kl", "--json", "--policies",
                           "full,qevict,qevict:quant_share=0,n_local=8", "--budgets", "0.5,1"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const std::vector<json> lines = r.json_lines();
  ASSERT_EQ(lines.size(), 5U);  // full has one row
  for (const json& line : lines) {
    EXPECT_EQ(line["prompt_tokens"], 200);
    EXPECT_EQ(line["scored_tokens"], 23);
    EXPECT_GT(line["ppl"].get<double>(), 1.0);
    EXPECT_GT(line["kv_resident_bytes"].get<std::int64_t>(), 0);
  }
  EXPECT_EQ(lines[0]["policy"], "full");
  EXPECT_EQ(lines[0]["kl_mean"], 0.0);
  EXPECT_EQ(lines[0]["same_top1"], 1.0);
  // Compression costs something; room for everything costs nothing.
  EXPECT_GT(lines[1]["kl_mean"].get<double>(), 0.0);
  EXPECT_LT(lines[1]["kv_resident_bytes"], lines[0]["kv_resident_bytes"]);
  EXPECT_EQ(lines[2]["budget"], "1");
  EXPECT_EQ(lines[2]["kl_mean"], 0.0);
  EXPECT_EQ(lines[2]["ppl"], lines[0]["ppl"]);
  EXPECT_EQ(lines[3]["policy"], "qevict:quant_share=0,n_local=8");
}

TEST_F(CliPerplexity, TheFullCacheNeedNotBeListed) {
  const std::string text = write("text.txt", long_text(300));
  std::vector<std::string> command = {"perplexity", "-m",         model(),  "-f",         text,
                                      "--prompt",   "200",        "--kl",   "--continue", "16",
                                      "--json",     "--policies", "qevict", "--budgets",  "0.5"};
  const json alone = cli(command).json();
  command[12] = "full,qevict";
  const std::vector<json> both = cli(command).json_lines();
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(alone["kl_mean"], both[1]["kl_mean"]);
}

TEST_F(CliPerplexity, StridesScoreSeveralPlaces) {
  const std::string text = write("text.txt", long_text(400));
  const json r = cli({"perplexity", "-m", model(), "-f", text, "--prompt", "100", "--continue",
                      "11", "--stride", "100", "--policies", "qevict", "--json"})
                     .json();
  EXPECT_GE(r["scored_tokens"].get<int>(), 30);
  EXPECT_EQ(r["scored_tokens"].get<int>() % 10, 0);
  EXPECT_FALSE(r.contains("kl_mean"));
}

TEST_F(CliPerplexity, DiagnosticsHoldPoliciesAgainstTheFullCachesAttention) {
  const std::string text = write("text.txt", long_text(300));
  const std::vector<json> lines =
      cli({"perplexity", "-m", model(), "-f", text, "--prompt", "200", "--continue", "18",
           "--diagnostics", "--details", "--json", "--policies", "full,qevict,qevict:quant_share=0",
           "--budgets", "0.5"})
          .json_lines();
  ASSERT_EQ(lines.size(), 2U);  // the full cache is what they are held against
  EXPECT_EQ(lines[0]["name"], "qevict");
  EXPECT_EQ(lines[0]["decode_steps"], 17);
  EXPECT_EQ(lines[0]["event_steps"], json({0, 8, 16}));
  EXPECT_LT(lines[0]["fmm"], lines[1]["fmm"]);
  EXPECT_GT(lines[0]["share_quantized"], 0.0);
  EXPECT_TRUE(lines[1]["qsa"].is_null());
  EXPECT_EQ(lines[0]["step_kl"].size(), 17U);
}

TEST_F(CliPerplexity, DiagnosticsOfThePapersVariantsAreATable) {
  const std::string text = write("text.txt", long_text(300));
  const CliResult r = cli({"perplexity", "-m", model(), "-f", text, "--prompt", "200",
                           "--own-answer", "10", "--diagnostics", "--budgets", "0.5"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const char* name : {"R1 ", "R2 ", "R3 ", "R4 ", "R3 without promotion", "R4 (ceil)"}) {
    EXPECT_NE(r.out.find(name), std::string::npos) << name;
  }
}

TEST_F(CliPerplexity, OwnAnswerIsTheFullCachesContinuation) {
  const std::string text = write("text.txt", long_text(40));
  const json answer = cli({"run", "-m", model(), "-f", text, "--policy", "full", "--ignore-eos",
                           "-n", "9", "--json"})
                          .json();
  const std::string ids = write("ids.json", answer["tokens"].dump());
  const std::string length = answer["prompt_tokens"].dump();
  json forced = cli({"perplexity", "-m", model(), "-f", text, "--prompt", length, "--forced-tokens",
                     ids, "--policies", "qevict", "--json"})
                    .json();
  json own = cli({"perplexity", "-m", model(), "-f", text, "--own-answer", "9", "--policies",
                  "qevict", "--json", "--parse-special"})
                 .json();
  EXPECT_EQ(own["scored_tokens"], 8);
  for (json* line : {&forced, &own}) line->erase("tpot_ms");
  EXPECT_EQ(own, forced);
}

TEST_F(CliPerplexity, SeveralPromptsEndInGeometricMeans) {
  const std::string a = write("a.txt", long_text(80));
  const std::string b = write("b.txt", "A dog was here. " + long_text(90));
  const CliResult r =
      cli({"perplexity", "-m", model(), "-f", a, b, "--prompt", "150", "--continue", "20", "--kl",
           "--json", "--policies", "full,qevict,qevict:quant_share=0", "--budgets", "0.4,0.5"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const std::vector<json> lines = r.json_lines();
  ASSERT_EQ(lines.size(), 15U);  // 5 rows a prompt, then 5 means
  for (std::size_t i = 0; i < 5; ++i) {
    const json& mean = lines[10 + i];
    EXPECT_EQ(lines[i]["prompt"], a);
    EXPECT_EQ(lines[5 + i]["prompt"], b);
    EXPECT_EQ(mean["prompts"], 2);
    EXPECT_EQ(mean["policy"], lines[i]["policy"]);
    EXPECT_EQ(mean["budget"], lines[i]["budget"]);
    const double ppl = std::sqrt(lines[i]["ppl"].get<double>() * lines[5 + i]["ppl"].get<double>());
    EXPECT_NEAR(mean["ppl_geomean"].get<double>() / ppl, 1.0, 1e-9);
    const double kl =
        std::sqrt(lines[i]["kl_mean"].get<double>() * lines[5 + i]["kl_mean"].get<double>());
    EXPECT_NEAR(mean["kl_geomean"].get<double>(), kl, 1e-9 * kl);
  }
  EXPECT_FALSE(lines[11].contains("kl_over"));  // the reference itself
  const json& over = lines[13].at("kl_over").at("qevict");
  ASSERT_EQ(over.size(), 1U);  // the budget of its own
  const json& ratio = over.at("0.4");
  EXPECT_NEAR(ratio["ratio"].get<double>(),
              lines[13]["kl_geomean"].get<double>() / lines[11]["kl_geomean"].get<double>(), 1e-9);
  EXPECT_LE(ratio["low"], ratio["ratio"]);
  EXPECT_GE(ratio["high"], ratio["ratio"]);
  const CliResult forced = cli({"perplexity", "-m", model(), "-f", a, b, "--forced-tokens",
                                write("ids.json", "[1,2]"), "--prompt", "9"});
  EXPECT_EQ(forced.exit_code, 2);
  EXPECT_NE(forced.err.find("1 files of forced tokens for 2 prompts"), std::string::npos);
}

TEST_F(CliPerplexity, RefusesWhatItCannotScore) {
  const std::string text = write("text.txt", long_text(20));
  const CliResult shorter = cli({"perplexity", "-m", model(), "-f", text, "--prompt", "4K"});
  EXPECT_EQ(shorter.exit_code, 2);
  EXPECT_NE(shorter.err.find("the text has"), std::string::npos) << shorter.err;
  EXPECT_EQ(shorter.out, "");
  const CliResult none = cli({"perplexity", "-m", model()});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("no text"), std::string::npos) << none.err;
  const std::string ids = write("ids.json", "[1,2,3]");
  const CliResult few = cli({"perplexity", "-m", model(), "-f", text, "--prompt", "5",
                             "--forced-tokens", ids, "--continue", "9"});
  EXPECT_EQ(few.exit_code, 2);
  EXPECT_NE(few.err.find("3 forced tokens"), std::string::npos) << few.err;
  const CliResult budget = cli({"perplexity", "-m", model(), "-f", text, "--budgets", "7"});
  EXPECT_EQ(budget.exit_code, 2);
}

}  // namespace
}  // namespace qevict
