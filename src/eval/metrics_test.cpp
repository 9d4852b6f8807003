#include "eval/metrics.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "eval/data.h"
#include "eval/task.h"

namespace qevict {
namespace {

using Strings = std::vector<std::string>;

TEST(StringMatch, CountsContainedAnswersWithoutCase) {
  EXPECT_DOUBLE_EQ(string_match_all("It is ABC, not 12.", {"abc", "13", "12", "d"}), 0.5);
  EXPECT_DOUBLE_EQ(string_match_all("nothing", {"abc"}), 0.0);
  EXPECT_DOUBLE_EQ(string_match_all("any", {}), 0.0);
  EXPECT_DOUBLE_EQ(string_match_part("the Duke of NORMANDY", {"Rollo", "normandy"}), 1.0);
  EXPECT_DOUBLE_EQ(string_match_part("the duke", {"Rollo"}), 0.0);
}

TEST(TokenF1, DropsCasePunctuationAndArticles) {
  EXPECT_DOUBLE_EQ(token_f1("The Eiffel-Tower!", "a eiffeltower"), 1.0);
  // 2 common words of 4 and of 2: precision 1/2, recall 1.
  EXPECT_DOUBLE_EQ(token_f1("it was in Paris, France.", "Paris France"), 2.0 * 0.4 / 1.4);
  EXPECT_DOUBLE_EQ(token_f1("", "Paris"), 0.0);
  EXPECT_DOUBLE_EQ(token_f1("the", "the"), 0.0);  // nothing is left of either
}

TEST(TokenF1, CountsRepeatedWordsAsOftenAsBothHaveThem) {
  // Common: "b" twice. Precision 2/3, recall 2/4.
  EXPECT_DOUBLE_EQ(token_f1("b b b", "b b c d"), 2.0 * (2.0 / 3.0) * 0.5 / (2.0 / 3.0 + 0.5));
}

TEST(TokenF1, SeesArticlesBesideOtherScripts) {
  // An em dash is no letter, so that "a" stands alone; inside "\u00E9a" it does not.
  EXPECT_DOUBLE_EQ(token_f1("a\u2014b", "\u2014b"), 1.0);
  EXPECT_DOUBLE_EQ(token_f1("\u00E9a", "\u00E9"), 0.0);
}

// By hand: 5 distinct words each, "the cat ... on mat" common: p = r = 4/5.
TEST(RougeL, WorksOnSetsOfWords) {
  EXPECT_NEAR(rouge_l("the cat sat on the mat", "the cat lay on the mat"), 0.8, 1e-8);
}

// Values of the Python package rouge 1.0.1 (tools/compare_metrics.py prints such).
TEST(RougeL, AgreesWithThePackage) {
  EXPECT_DOUBLE_EQ(rouge_l("the cat sat on the mat", "the cat lay on the mat"), 0.7999999950000002);
  // "A" and "a" differ, and " " after the last full stop is a sentence of one empty word: 4 common
  // of 6 + 1 and of 6.
  EXPECT_DOUBLE_EQ(rouge_l("A b c. D e f. ", "a b c. D f g."), 0.6153846104142012);
  // The paper's example: the union of two subsequences is w1 w2 w3 w5, 4 of 5 and of 8.
  EXPECT_DOUBLE_EQ(rouge_l("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5.", "w1 w2 w3 w4 w5"),
                   0.6153846106508877);
  EXPECT_DOUBLE_EQ(rouge_l("Police said. The man ran away . ", "The man ran. Police said so."),
                   0.7692307642603551);
}

TEST(RougeL, IsZeroWithoutSentences) {
  EXPECT_DOUBLE_EQ(rouge_l("", "a"), 0.0);
  EXPECT_DOUBLE_EQ(rouge_l("...", "a"), 0.0);
  EXPECT_DOUBLE_EQ(rouge_l("x", "y"), 0.0);
}

TEST(Classification, SharesTheScoreAmongNamedClasses) {
  const Strings classes = {"Number", "Number of something", "City", "Country"};
  EXPECT_DOUBLE_EQ(classification("City", "City", classes), 1.0);
  EXPECT_DOUBLE_EQ(classification("City or Country", "City", classes), 0.5);
  // "Number" is part of the answer's name and does not count.
  EXPECT_DOUBLE_EQ(classification("Number of something", "Number of something", classes), 1.0);
  EXPECT_DOUBLE_EQ(classification("Country", "City", classes), 0.0);
  EXPECT_DOUBLE_EQ(classification("", "City", classes), 0.0);
}

TEST(Numbers, TakesTheLastByValue) {
  EXPECT_EQ(last_number("5 + 7 = 12 apples."), "12");
  EXPECT_EQ(last_number("so $1,234.50 in all..."), "1234.5");
  EXPECT_EQ(last_number("18.00"), "18");
  EXPECT_EQ(last_number("007"), "7");
  EXPECT_EQ(last_number("it falls to -3 degrees"), "-3");
  EXPECT_EQ(last_number("0.50 or .5"), "0.5");
  EXPECT_EQ(last_number("-0"), "0");
  EXPECT_EQ(last_number("1,2 and 3, then"), "3");
  EXPECT_EQ(last_number("none ..."), std::nullopt);
}

TEST(Numbers, StrictWantsTheSentence) {
  EXPECT_EQ(stated_number("20 - 2 = 18. The answer is 18. Q: 5"), "18");
  EXPECT_EQ(stated_number("The answer is unclear. The answer is 1,018."), "1018");
  EXPECT_EQ(stated_number("The answer is -4."), "-4");
  EXPECT_EQ(stated_number("the answer: 18"), std::nullopt);
}

TEST(Score, TakesTheBestAnswer) {
  Sample sample;
  sample.metric = Metric::F1;
  sample.answers = {"London", "Paris"};
  EXPECT_DOUBLE_EQ(score(sample, "Paris."), 1.0);
  sample.metric = Metric::ExactNumber;
  sample.answers = {"1,080"};
  EXPECT_DOUBLE_EQ(score(sample, "That makes 1080 pages."), 1.0);
  EXPECT_DOUBLE_EQ(score(sample, "That makes 108."), 0.0);
  sample.metric = Metric::StrictNumber;
  EXPECT_DOUBLE_EQ(score(sample, "That makes 1080 pages."), 0.0);
  EXPECT_DOUBLE_EQ(score(sample, "The answer is 1080."), 1.0);
}

TEST(Score, LooksAtTheFirstLineOnlyWhereAsked) {
  Sample sample;
  sample.metric = Metric::All;
  sample.answers = {"two"};
  EXPECT_DOUBLE_EQ(score(sample, "\n\none\ntwo"), 1.0);
  sample.first_line_only = true;
  EXPECT_DOUBLE_EQ(score(sample, "\n\none\ntwo"), 0.0);
  EXPECT_DOUBLE_EQ(score(sample, "\n\ntwo\none"), 1.0);
  EXPECT_DOUBLE_EQ(score(sample, "\n\n"), 0.0);
}

TEST(Metrics, HaveNames) {
  for (const Metric metric : {Metric::All, Metric::Part, Metric::F1, Metric::RougeL,
                              Metric::Classification, Metric::ExactNumber, Metric::StrictNumber}) {
    EXPECT_EQ(parse_metric(to_string(metric)), metric);
  }
  const auto unknown = parse_metric("bleu");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("rouge_l"), std::string::npos);
}

// Pairs with the scores of the Python originals, written and run by tools/compare_metrics.py.
TEST(MetricsReference, AgreesWithTheOriginals) {
  const char* path = std::getenv("QEVICT_METRIC_PAIRS");
  if (path == nullptr) GTEST_SKIP() << "QEVICT_METRIC_PAIRS names no file";
  int n = 0;
  const Status read = read_json_lines(path, [&](const JsonRecord& record) -> Status {
    const std::string prediction = record.text("prediction").value();
    const std::string answer = record.text("answer").value();
    const Json& json = record.json();
    EXPECT_NEAR(rouge_l(prediction, answer), json["rouge_l"].get<double>(), 1e-12)
        << record.where();
    EXPECT_NEAR(token_f1(prediction, answer), json["f1"].get<double>(), 1e-12) << record.where();
    const auto classes = record.texts("classes").value();
    EXPECT_NEAR(classification(prediction, answer, classes), json["classification"].get<double>(),
                1e-12)
        << record.where();
    ++n;
    return {};
  });
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_GT(n, 0);
}

}  // namespace
}  // namespace qevict
