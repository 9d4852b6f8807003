#include "eval/fit.h"

#include "eval/random.h"
#include "eval/tasks_test.h"

namespace qevict {
namespace {

Sample of_words(int n, int max_new = 10) {
  Sample sample;
  for (int i = 0; i < n; ++i) sample.context += " word";  // a token each
  sample.question = "?";
  sample.max_new_tokens = max_new;
  return sample;
}

// Around the words: "<user>", "</user><assistant>", "<s>", "?".
int overhead(const Tokenizer& tokenizer) { return *count_prompt_tokens(tokenizer, of_words(0)); }

TEST(Fit, FindsTheLongestThatLeavesRoomForTheAnswer) {
  const PieceTokenizer tokenizer;
  const int expected = 200 - 10 - kCutTokens - overhead(tokenizer);
  for (const int start : {1, 50, expected, 5000}) {
    int guess = start;
    const auto sample =
        fit_sample(tokenizer, 200, {1, 100'000}, guess, [](int units) { return of_words(units); });
    ASSERT_TRUE(sample.has_value());
    EXPECT_EQ(guess, expected);
    EXPECT_EQ(total_tokens(*sample, tokenizer), 200 - kCutTokens);
  }
}

TEST(Fit, StaysWithinItsRange) {
  const PieceTokenizer tokenizer;
  int guess = 1;
  const auto sample =
      fit_sample(tokenizer, 200, {1, 7}, guess, [](int units) { return of_words(units); });
  ASSERT_TRUE(sample.has_value());
  EXPECT_EQ(guess, 7);
}

TEST(Fit, SaysWhenNothingFits) {
  int guess = 30;
  const auto sample = fit_sample(PieceTokenizer(), 60, {20, 100}, guess,
                                 [](int units) { return of_words(units, 50); });
  ASSERT_FALSE(sample.has_value());
  EXPECT_NE(sample.error().message.find("context 60"), std::string::npos) << sample.error().message;
}

TEST(Fit, CountsTheTemplateWhereTheSampleAsksForOne) {
  Sample sample = of_words(3);
  const PieceTokenizer with_template, without(false);
  EXPECT_GT(*count_prompt_tokens(with_template, sample), *count_prompt_tokens(without, sample));
  sample.chat = false;
  EXPECT_EQ(*count_prompt_tokens(with_template, sample), *count_prompt_tokens(without, sample));
}

TEST(Random, HasStreamsOfItsOwn) {
  EXPECT_EQ(Random(1, "a", 2).bits(), Random(1, "a", 2).bits());
  EXPECT_NE(Random(1, "a", 2).bits(), Random(1, "a", 3).bits());
  EXPECT_NE(Random(1, "a", 2).bits(), Random(1, "b", 2).bits());
  EXPECT_NE(Random(1, "a", 2).bits(), Random(2, "a", 2).bits());
}

TEST(Random, IsTheSameOnEveryMachine) {
  Random random(42, "test");
  EXPECT_EQ(random.bits(), 3254422813207426290u);
}

TEST(Random, SamplesWithoutRepeats) {
  auto sample = Random(7, "x").sample(10, 10);
  std::sort(sample.begin(), sample.end());
  for (std::size_t i = 0; i < sample.size(); ++i) EXPECT_EQ(sample[i], i);
}

}  // namespace
}  // namespace qevict
