// qevict perplexity from outside.
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
