#include "eval/tasks_test.h"

namespace qevict {
namespace {

class LongBench : public testing::Test {
 protected:
  LongBench() {
    folder_.write("longbench/dataset2prompt.json",
                  R"({"hotpotqa":"Read.\n{context}\n\nQuestion: {input}\nAnswer:",)"
                  R"("qmsum":"Meeting:\n{context}\n\nQuery: {input}\nAnswer:",)"
                  R"("multi_news":"News:\n{context}\n\nSummary:","trec":"{context}\n{input}",)"
                  R"("samsum":"{context}\n\n{input}"})");
    folder_.write("longbench/dataset2maxlen.json",
                  R"({"hotpotqa":32,"qmsum":512,"multi_news":64,"trec":64,"samsum":128})");
  }
  void write_set(const std::string& name, const std::string& entries) const {
    folder_.write("longbench/" + name + ".jsonl", entries);
  }
  DataFolder folder_;
};

TEST_F(LongBench, FillsItsPromptAndSplitsItBehindTheContext) {
  write_set("hotpotqa", R"({"input":"Who?","context":"It was Ada.","answers":["Ada","Ada L."],)"
                        R"("all_classes":null})"
                        "\n");
  const auto samples = samples_of("longbench:hotpotqa", folder_.options(1024, 3));
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].context, "Read.\nIt was Ada.");
  EXPECT_EQ(samples[0].question, "\n\nQuestion: Who?\nAnswer:");
  EXPECT_EQ(samples[0].max_new_tokens, 32);
  EXPECT_TRUE(samples[0].chat);
  EXPECT_DOUBLE_EQ(score(samples[0], "the Ada"), 1.0);
  EXPECT_NEAR(score(samples[0], "Ada Lovelace"), 2.0 / 3.0, 1e-12);  // of "Ada": p 1/2, r 1
  EXPECT_DOUBLE_EQ(score(samples[0], "Bob"), 0.0);
}

TEST_F(LongBench, CutsTheMiddleOutOfLongPrompts) {
  std::string story;
  for (int i = 0; i < 500; ++i) story += "\u00E9\u592A" + std::to_string(i) + " ";
  write_set("multi_news", R"({"input":"","context":")" + story + R"(","answers":["x"]})");
  for (int context = 400; context < 412; ++context) {  // cuts at every byte of the characters
    const auto samples = samples_of("longbench:multi_news", folder_.options(context, 1));
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_LE(total_tokens(samples[0]), context);
    EXPECT_GT(total_tokens(samples[0]), context - 16);
    EXPECT_TRUE(samples[0].context.starts_with("News:\n\u00E9\u592A0 \u00E9\u592A1 "));
    EXPECT_TRUE(samples[0].context.ends_with("498 \u00E9\u592A499 "));
    EXPECT_EQ(samples[0].question, "\n\nSummary:");
  }
}

TEST_F(LongBench, SaysWhenTheQuestionIsTooLong) {
  std::string question;
  for (int i = 0; i < 300; ++i) question += "why ";
  write_set("hotpotqa",
            R"({"input":")" + question + R"(","context":")" + question + R"(","answers":["x"]})");
  const std::string message = error_of("longbench:hotpotqa", folder_.options(400, 1));
  EXPECT_NE(message.find("longbench:hotpotqa, test-0: half of what"), std::string::npos) << message;
}

TEST_F(LongBench, LooksAtTheFirstLineOfFewShotAnswers) {
  write_set("trec", R"({"input":"Question: x\nType:","context":"c","answers":["City"],)"
                    R"("all_classes":["City","Country"]})");
  const auto trec = samples_of("longbench:trec", folder_.options(1024, 3));
  ASSERT_EQ(trec.size(), 1u);
  EXPECT_FALSE(trec[0].chat);
  EXPECT_TRUE(trec[0].stop.empty());
  EXPECT_DOUBLE_EQ(score(trec[0], "\n City\nType: Country"), 1.0);
  EXPECT_DOUBLE_EQ(score(trec[0], " City Country"), 0.5);
  write_set("samsum", R"({"input":"i","context":"c","answers":["a b c d"]})");
  const auto samsum = samples_of("longbench:samsum", folder_.options(1024, 3));
  ASSERT_EQ(samsum.size(), 1u);
  EXPECT_EQ(samsum[0].stop, std::vector<std::string>{"\n"});
  EXPECT_NEAR(score(samsum[0], "a b x y\na b c d"), 0.5, 1e-8);
}

TEST_F(LongBench, ReadsQmsumAsItsAuthorsPublishIt) {
  folder_.write("qmsum/test.jsonl",
                R"({"meeting_transcripts":[{"speaker":"A","content":"Hi ."},)"
                R"({"speaker":"B","content":"No ."}],)"
                R"("general_query_list":[{"query":"All?","answer":"They met."}],)"
                R"("specific_query_list":[{"query":"B?","answer":"B disagreed."}]})");
  const auto samples = samples_of("longbench:qmsum", folder_.options(2048, 9));
  ASSERT_EQ(samples.size(), 2u);
  for (const Sample& sample : samples) {
    EXPECT_EQ(sample.context, "Meeting:\nA: Hi .\nB: No .");
    const bool general = sample.question == "\n\nQuery: All?\nAnswer:";
    EXPECT_TRUE(general || sample.question == "\n\nQuery: B?\nAnswer:");
    EXPECT_EQ(sample.answers[0], general ? "They met." : "B disagreed.");
  }
  const auto names = expand_task("longbench", folder_.options(2048, 9));
  EXPECT_EQ(names, std::vector<std::string>{"longbench:qmsum"});
}

TEST_F(LongBench, PrefersTheSetThatLongBenchMade) {
  folder_.write("qmsum/test.jsonl", "{}");
  write_set("qmsum", R"({"input":"q","context":"c","answers":["a"]})");
  EXPECT_EQ(samples_of("longbench:qmsum", folder_.options(2048, 9)).size(), 1u);
}

TEST_F(LongBench, NamesFileLineAndField) {
  write_set("trec", "\n{\"input\":\"i\",\"context\":\"c\",\"answers\":[1]}");
  const std::string message = error_of("longbench:trec", folder_.options(1024, 3));
  EXPECT_NE(message.find("trec.jsonl, line 2"), std::string::npos) << message;
  EXPECT_NE(message.find("field \"answers\""), std::string::npos) << message;
}

class Gsm8k : public testing::Test {
 protected:
  Gsm8k() {
    folder_.write("gsm8k/test.jsonl", R"({"question":"2+2?","answer":"2+2=4\n#### 4"})"
                                      "\n"
                                      R"({"question":"A lot?","answer":"#### 1,080"})"
                                      "\n"
                                      R"({"question":"Less?","answer":"#### -3"})");
  }
  DataFolder folder_;
};

TEST_F(Gsm8k, ChatsWithoutExamples) {
  const auto samples = samples_of("gsm8k", folder_.options(1024, 3));
  ASSERT_EQ(samples.size(), 3u);
  double right = 0.0;
  for (const Sample& sample : samples) {
    EXPECT_TRUE(sample.chat);
    EXPECT_FALSE(sample.question.empty());
    right += score(sample, "It is 4, or $1080.");
  }
  EXPECT_DOUBLE_EQ(right, 1.0);
}

TEST_F(Gsm8k, PutsSolvedProblemsFirst) {
  folder_.write("gsm8k/cot_examples.jsonl",
                R"({"question":"1+1?","target":"1+1=2. The answer is 2."})");
  const auto samples = samples_of("gsm8k_cot", folder_.options(1024, 1));
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].context, "Q: 1+1?\nA: 1+1=2. The answer is 2.\n\n");
  EXPECT_TRUE(samples[0].question.starts_with("Q: "));
  EXPECT_TRUE(samples[0].question.ends_with("?\nA:"));
  EXPECT_FALSE(samples[0].chat);
  EXPECT_EQ(samples[0].stop[0], "Q:");
  const auto strict = samples_of("gsm8k_cot_strict", folder_.options(1024, 3));
  EXPECT_EQ(strict[0].id, samples[0].id);
  EXPECT_DOUBLE_EQ(score(strict[0], "The answer is " + strict[0].answers[0] + "."), 1.0);
  EXPECT_DOUBLE_EQ(score(strict[0], strict[0].answers[0]), 0.0);
}

TEST_F(Gsm8k, NeedsItsData) {
  const std::string message = error_of("gsm8k_cot", folder_.options(1024, 1));
  EXPECT_NE(message.find("tools/fetch_data.py gsm8k_cot"), std::string::npos) << message;
  folder_.write("gsm8k/test.jsonl", R"({"question":"x","answer":"4"})");
  EXPECT_NE(error_of("gsm8k", folder_.options(1024, 1)).find("field \"answer\": has no ####"),
            std::string::npos);
}

}  // namespace
}  // namespace qevict
