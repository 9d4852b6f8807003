#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include "engine/run_report.h"

namespace qevict {
namespace {

TEST(TextStream, HoldsBackIncompleteUtf8) {
  TextStream s({});
  EXPECT_EQ(s.push("a\xC3"), "a");
  EXPECT_EQ(s.push("\xA9z"), "\xC3\xA9z");
  EXPECT_EQ(s.push("\xF0\x9F\x98"), "");
  EXPECT_EQ(s.finish(), "\xEF\xBF\xBD");
}

TEST(TextStream, CutsBeforeAStopStringThatSpansTokens) {
  TextStream s({"END", "\n\n"});
  EXPECT_EQ(s.push("one E"), "one ");
  EXPECT_EQ(s.push("N"), "");
  EXPECT_EQ(s.push("Gage EN"), "ENGage ");
  EXPECT_EQ(s.push("D more"), "");
  EXPECT_TRUE(s.stopped());
  EXPECT_EQ(s.text(), "one ENGage ");
}

TEST(TextStream, TakesTheFirstOfSeveralStops) {
  TextStream s({"b", "ab"});
  EXPECT_EQ(s.push("xxabyy"), "xx");
  EXPECT_TRUE(s.stopped());
}

TEST(TextStream, ReleasesAHeldPrefixAtTheEnd) {
  TextStream s({"STOP"});
  EXPECT_EQ(s.push("text ST"), "text ");
  EXPECT_EQ(s.finish(), "ST");
  EXPECT_FALSE(s.stopped());
}

TEST(TextStream, InvalidBytesDoNotBlock) {
  EXPECT_EQ(complete_utf8_prefix("\xFF\x80\x80\x80"), 4U);
  EXPECT_EQ(complete_utf8_prefix("ab\xE2\x82"), 2U);
  EXPECT_EQ(complete_utf8_prefix(""), 0U);
}

TEST(TextStream, InvalidPartsBecomeReplacementCharacters) {
  EXPECT_EQ(valid_utf8("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(valid_utf8("\xC3\xA9\xF0\x9F\x98\x80"), "\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(valid_utf8("\xE2\x82"), "\xEF\xBF\xBD");
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  TextStream s({});
  EXPECT_EQ(s.push("x\x80y"), "x\xEF\xBF\xBDy");
}

TEST(RunReport, QuantileInterpolates) {
  EXPECT_DOUBLE_EQ(quantile({}, 0.5), 0.0);
  EXPECT_DOUBLE_EQ(quantile({3, 1, 2}, 0.5), 2.0);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.95), 9.5);
}

TEST(RunReport, TopLogprobsAreNormalisedAndOrdered) {
  const std::vector<float> logits = {0.0F, 1.0F, 1.0F, -INFINITY};
  const auto top = top_logprobs(logits, 3);
  ASSERT_EQ(top.size(), 3U);
  EXPECT_EQ(top[0].id, 1);
  EXPECT_EQ(top[1].id, 2);
  EXPECT_EQ(top[2].id, 0);
  const double sum = std::exp(top[0].logprob) + std::exp(top[1].logprob) + std::exp(top[2].logprob);
  EXPECT_NEAR(sum, 1.0, 1e-12);
}

}  // namespace
}  // namespace qevict
