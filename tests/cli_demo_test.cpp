// `qevict demo` from outside.
#include "cli_runner.h"

namespace qevict {
namespace {

using nlohmann::json;

class CliDemo : public CliTest {};

TEST_F(CliDemo, ShowsThePoliciesAndTheirTierMaps) {
  const CliResult r = cli({"demo"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const char* part :
       {"full cache", "eviction only, 20 %", "qevict, 20 %", "qevict+, 10 %", "the code of ",
        "accuracy", "tok/s", "Quantized", "evicted", "qqqq", "FFFF", "...."}) {
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
  }
  EXPECT_EQ(r.out.find('\x1b'), std::string::npos) << "colour, and stdout is no terminal";
  EXPECT_NE(r.err.find("not how well"), std::string::npos);
}

TEST_F(CliDemo, JsonNamesWhatEachRowHeldAndAnswered) {
  const CliResult r = cli({"demo", "--json", "-q", "--tokens", "1k", "--questions", "40",
                           "--policy", "full", "--policy", "qevict:kv_budget=0.2"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.err, "");
  const json j = r.json();
  EXPECT_EQ(j.at("model"), "built in");
  EXPECT_EQ(j.at("prompt_tokens"), 1024);
  ASSERT_EQ(j.at("rows").size(), 2U);
  const json& full = j.at("rows")[0];
  const json& ours = j.at("rows")[1];
  EXPECT_EQ(full.at("policy"), "full");
  EXPECT_EQ(ours.at("policy"), "qevict:kv_budget=0.2");
  EXPECT_GE(full.at("accuracy"), 0.9);
  EXPECT_GE(full.at("right"), ours.at("right"));
  EXPECT_LT(ours.at("kv").at("resident_bytes").get<double>(),
            0.25 * full.at("kv").at("resident_bytes").get<double>());
  for (const json& row : j.at("rows")) {
    EXPECT_EQ(row.at("asked"), 40);
    EXPECT_GT(row.at("decode_tok_s"), 0);
    // Prompt and questions but the sinks, eight tokens a character.
    EXPECT_EQ(row.at("tier_map").get<std::string>().size(), (1024 + 40 * 5 - 5 + 7) / 8);
  }
  EXPECT_EQ(full.at("tier_map").get<std::string>().find_first_of("q."), std::string::npos);
  EXPECT_NE(ours.at("tier_map").get<std::string>().find('q'), std::string::npos);
  EXPECT_NE(ours.at("tier_map").get<std::string>().find('.'), std::string::npos);
}

TEST_F(CliDemo, GivesTheSameAnswersEveryTimeAndOthersWithAnotherSeed) {
  const auto rows = [&](const char* seed) {
    const CliResult r = cli({"demo", "--json", "-q", "--tokens", "600", "--questions", "20",
                             "--policy", "qevict:kv_budget=0.2", "--seed", seed});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.json().at("rows")[0].at("tier_map");
  };
  EXPECT_EQ(rows("1"), rows("1"));
  EXPECT_NE(rows("1"), rows("2"));
}

TEST_F(CliDemo, RefusesAnotherModelAndAFolderThatItCannotWrite) {
  const CliResult other = cli({"demo", "-m", model()});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("not the recall model's"), std::string::npos) << other.err;
  const CliResult absent = cli({"demo", "-m", path("none.gguf")});
  EXPECT_EQ(absent.exit_code, 2) << absent.err;
  const CliResult folder = cli({"demo"}, {.environment = {"TMPDIR=" + path("none")}});
  EXPECT_EQ(folder.exit_code, 1);
  EXPECT_NE(folder.err.find("TMPDIR"), std::string::npos) << folder.err;
  EXPECT_EQ(std::count(folder.err.begin(), folder.err.end(), '\n'), 1);
  EXPECT_EQ(cli({"demo", "--policy", "magic"}).exit_code, 2);
  EXPECT_EQ(cli({"demo", "--tokens", "10"}).exit_code, 2);
}

TEST_F(CliDemo, LeavesNoFileBehind) {
  const std::string folder = path("temporary");
  std::filesystem::create_directory(folder);
  const CliResult r = cli({"demo", "--tokens", "600", "--questions", "5", "--policy", "full"},
                          {.environment = {"TMPDIR=" + folder}});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace qevict
