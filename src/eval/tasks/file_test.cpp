#include "eval/data.h"
#include "eval/tasks_test.h"

namespace qevict {
namespace {

const char* const kGood =
    R"({"id":"a","context":"Rome is old.","question":"How old?","answers":["old"],)"
    R"("max_new_tokens":8,"metric":"all"})";

// The good line with `from` replaced.
std::string changed(const std::string& from, const std::string& to) {
  std::string line = kGood;
  line.replace(line.find(from), from.size(), to);
  return line;
}

class FileTask : public testing::Test {
 protected:
  std::string error(const std::string& text) const {
    return error_of("file:" + folder_.write("mine.jsonl", text), folder_.options(256, 10));
  }
  // The error names file, line and `what`.
  void expect_error(const std::string& text, int line, const std::string& what) const {
    const std::string message = error(text);
    EXPECT_NE(message.find(what), std::string::npos) << message;
    const std::string where = folder_.file("mine.jsonl") + ", line " + std::to_string(line);
    EXPECT_NE(message.find(where), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  DataFolder folder_;
};

TEST_F(FileTask, ReadsSamplesAndLeavesBlankLinesOut) {
  const std::string text = std::string("\n") + kGood + "\r\n  \n" + changed("\"a\"", "\"b\"");
  const auto samples =
      samples_of("file:" + folder_.write("mine.jsonl", text), folder_.options(256, 10));
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].id, "a");
  EXPECT_EQ(whole_text(samples[1]), "Rome is old.\n\nHow old?");
  EXPECT_EQ(samples[1].max_new_tokens, 8);
  EXPECT_DOUBLE_EQ(score(samples[1], "Very OLD"), 1.0);
  EXPECT_TRUE(samples[1].chat);
}

TEST_F(FileTask, TakesTheFirstSamples) {
  const std::string text = std::string(kGood) + "\n" + changed("\"a\"", "\"b\"") + "\n";
  EXPECT_EQ(samples_of("file:" + folder_.write("mine.jsonl", text), folder_.options(256, 1)).size(),
            1u);
}

TEST_F(FileTask, KnowsEveryMetric) {
  for (const char* metric : {"all", "part", "f1", "rouge_l", "exact_number", "strict_number"}) {
    EXPECT_EQ(error(changed("\"all\"", "\"" + std::string(metric) + "\"")), "no error");
  }
  const std::string classes = "\"classification\",\"classes\":[\"old\",\"new\"]";
  EXPECT_EQ(error(changed("\"all\"", classes)), "no error");
}

TEST_F(FileTask, NamesMissingFields) {
  for (const char* field : {"id", "context", "question", "answers", "max_new_tokens", "metric"}) {
    Json sample = Json::parse(kGood);
    sample.erase(field);
    expect_error(std::string(kGood) + "\n\n" + sample.dump(), 3,
                 std::string("field \"") + field + "\": missing");
  }
}

TEST_F(FileTask, NamesUnknownFields) {
  expect_error(changed("\"context\"", "\"contxt\""), 1,
               "field \"contxt\": unknown, use id, context");
  expect_error(changed("\"all\"", "\"all\",\"first_line\":true"), 1,
               "field \"first_line\": unknown");
}

TEST_F(FileTask, NamesFieldsOfTheWrongType) {
  expect_error(changed("\"a\"", "7"), 1, "field \"id\": a number, not a string");
  expect_error(changed("\"Rome is old.\"", "null"), 1, "field \"context\": null, not a string");
  expect_error(changed("\"How old?\"", "[\"x\"]"), 1, "field \"question\": an array");
  expect_error(changed("[\"old\"]", "\"old\""), 1, "field \"answers\": a string, not an array");
  expect_error(changed("[\"old\"]", "[\"old\",3]"), 1, "field \"answers\": item 1 is a number");
  expect_error(changed(":8", ":\"8\""), 1, "field \"max_new_tokens\": a string");
  expect_error(changed(":8", ":8.5"), 1, "field \"max_new_tokens\": a number, not a whole number");
  expect_error(changed("\"all\"", "true"), 1, "field \"metric\": a boolean");
}

TEST_F(FileTask, NamesValuesOutOfRange) {
  expect_error(changed("[\"old\"]", "[]"), 1, "field \"answers\": is empty");
  expect_error(changed("[\"old\"]", "[\"\"]"), 1, "field \"answers\": has an empty string");
  expect_error(changed("\"a\"", "\"\""), 1, "field \"id\": is empty");
  expect_error(changed(":8", ":0"), 1, "field \"max_new_tokens\": 0, not in");
  expect_error(changed(":8", ":-1"), 1, "field \"max_new_tokens\": -1, not in");
  expect_error(changed(":8", ":300"), 1, "field \"max_new_tokens\": 300, more than the context");
  expect_error(changed(":8", ":18446744073709551615"), 1,
               "\"max_new_tokens\": 18446744073709551615");
  expect_error(changed(":8", ":1e99"), 1, "field \"max_new_tokens\"");
  expect_error(changed("\"all\"", "\"bleu\""), 1, "unknown metric 'bleu'");
  expect_error(changed("\"all\"", "\"classification\""), 1, "field \"classes\": missing");
  expect_error(changed("\"all\"", "\"all\",\"stop\":[\"\"]"), 1, "field \"stop\"");
}

TEST_F(FileTask, RefusesTheSameIdTwice) {
  expect_error(std::string(kGood) + "\n" + kGood, 2, "field \"id\": 'a' is also that of");
}

TEST_F(FileTask, RefusesWhatIsNoJson) {
  expect_error(std::string(kGood) + "\n{\"id\": \n", 2, "not valid JSON");
  expect_error("[1,2]", 1, "an array, not a JSON object");
  expect_error(changed("Rome", std::string("R\0me", 4)), 1, "a NUL byte");
  expect_error(changed("Rome", "R\\u0000me"), 1, "field \"context\": holds a NUL");
  expect_error(changed("Rome", "R\xFFme"), 1, "not valid UTF-8, column");
  expect_error(std::string(200'000, '['), 1, "not valid JSON");
}

TEST_F(FileTask, RefusesWhatDoesNotFit) {
  std::string story;
  for (int i = 0; i < 300; ++i) story += " long";
  expect_error(changed("Rome is old.", story), 1, "give a longer --context");
  const std::string endless(5'000'000, 'x');
  expect_error(changed("Rome is old.", endless), 1, "5000010 bytes, too many for 246 tokens");
}

TEST_F(FileTask, NamesFilesThatCannotBeRead) {
  EXPECT_NE(error("").find("an empty file"), std::string::npos);
  EXPECT_NE(error("\n\n").find("no samples"), std::string::npos);
  const TaskOptions options = folder_.options(256, 10);
  const std::string absent = error_of("file:" + folder_.file("absent"), options);
  EXPECT_NE(absent.find("cannot read"), std::string::npos) << absent;
  EXPECT_NE(absent.find(folder_.file("absent")), std::string::npos) << absent;
  EXPECT_NE(error_of("file:" + folder_.path(), options).find("a folder"), std::string::npos);
}

TEST(Registry, ListsKnownTasks) {
  const auto unknown = make_task("ruler:niah");
  ASSERT_FALSE(unknown.has_value());
  for (const char* name : {"'ruler:niah'", "ruler:vt", "longbench:qmsum", "gsm8k", "file:"}) {
    EXPECT_NE(unknown.error().message.find(name), std::string::npos) << name;
  }
  EXPECT_FALSE(make_task("file:").has_value());
  EXPECT_FALSE(make_task("kv_retrieval:many").has_value());
}

TEST(Registry, ExpandsGroups) {
  const DataFolder folder;
  const TaskOptions options = folder.options(1024, 3);
  EXPECT_EQ(expand_task("ruler", options).size(), 13u);
  EXPECT_EQ(expand_task("gsm8k", options), std::vector<std::string>{"gsm8k"});
  EXPECT_EQ(expand_task("longbench", options).size(), 12u);  // none is there: all are named
  folder.write("longbench/trec.jsonl", "{}");
  EXPECT_EQ(expand_task("longbench", options), std::vector<std::string>{"longbench:trec"});
}

}  // namespace
}  // namespace qevict
