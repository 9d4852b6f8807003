// RULER's word counting: the common words of a numbered list, the frequent words of a coded text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "eval/generated_task.h"
#include "eval/random.h"
#include "eval/tasks/tasks.h"

namespace qevict {
namespace {

constexpr int kCommonWords = 10;
// Below this context RULER's lists would not fit; it then repeats words less often.
constexpr int kSmallContext = 4096;

struct WordList {
  std::string numbered;  // "1. word 2. word ..."
  std::vector<std::string> common;
};

struct Repeats {
  int common = 30;
  int others = 3;
};

std::string number(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    fmt::format_to(std::back_inserter(text), "{}{}. {}", i == 0 ? "" : " ", i + 1, words[i]);
  }
  return text;
}

WordList make_list(const std::vector<std::string>& words, int n_words, Repeats repeats,
                   Random& random) {
  WordList list;
  std::vector<std::string> all;
  for (const std::size_t i : random.sample(words.size(), static_cast<std::size_t>(n_words))) {
    const bool common = list.common.size() < kCommonWords;
    if (common) list.common.push_back(words[i]);
    all.insert(all.end(), static_cast<std::size_t>(common ? repeats.common : repeats.others),
               words[i]);
  }
  random.shuffle(all);
  list.numbered = number(all);
  return list;
}

Sample common_words_sample(const WordList& list) {
  Sample sample;
  sample.context =
      "Below is a numbered list of words. In these words, some appear more often than others. "
      "Memorize the ones that appear most often.\n" +
      list.numbered + "\n";
  sample.question = "Question: What are the 10 most common words in the above list?";
  sample.answer_prefix = " Answer: The top 10 words that appear most often in the list are:";
  sample.answers = list.common;
  sample.max_new_tokens = 120;
  sample.metric = Metric::All;
  return sample;
}

class CommonWordsTask final : public GeneratedTask {
 public:
  CommonWordsTask() : GeneratedTask("ruler:cwe") {}

 protected:
  Result<Plan> plan(const Tokenizer&, const TaskOptions& options) const override {
    std::set<std::string> unique;
    for (const char* list : {"nounlist", "adjectivelist", "verblist"}) {
      auto loaded = load_words(options.data_dir, list);
      if (!loaded) return std::unexpected(loaded.error());
      unique.insert(loaded->begin(), loaded->end());
    }
    const bool small = options.context_tokens < kSmallContext;
    auto words = std::make_shared<std::vector<std::string>>(unique.begin(), unique.end());
    const int example_words = small ? 20 : 40;
    if (static_cast<int>(words->size()) < example_words) {
      return bad_input("the word lists are too short (wonderwords): fetch them again");
    }
    Plan plan;
    plan.make = [this, words, small, example_words, seed = options.seed](int index, int units) {
      Random random(seed, name(), static_cast<std::uint64_t>(index));
      const Sample solved = common_words_sample(
          make_list(*words, example_words, small ? Repeats{3, 1} : Repeats{10, 3}, random));
      Sample sample = common_words_sample(
          make_list(*words, units, small ? Repeats{6, 1} : Repeats{30, 3}, random));
      sample.context.insert(0, solved.context + solved.question + solved.answer_prefix + " " +
                                   number(solved.answers) + "\n");
      return sample;
    };
    plan.range = {kCommonWords + 1, static_cast<int>(words->size())};
    plan.guess = std::max(kCommonWords + 1, options.context_tokens / 24 - 120);
    plan.n_samples = options.samples;
    return plan;
  }
};

// Words of six random letters; that of rank k takes n / (k^2 zeta(2)) places. The first is written
// as dots and not asked for.
Sample frequent_words_sample(int n_words, int vocabulary, Random random) {
  constexpr int kLetters = 6;
  constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6.0;
  std::vector<std::string> words = {"..."};
  std::set<std::string> used;
  while (static_cast<int>(words.size()) < vocabulary) {
    std::string word;
    for (int i = 0; i < kLetters; ++i) word.push_back(static_cast<char>('a' + random.below(26)));
    if (used.insert(word).second) words.push_back(word);
  }
  std::vector<std::string> text;
  for (int k = 1; k <= vocabulary; ++k) {
    const auto count = static_cast<std::size_t>(n_words / (kZeta2 * k * k));
    text.insert(text.end(), count, words[static_cast<std::size_t>(k - 1)]);
  }
  random.shuffle(text);
  Sample sample;
  sample.context =
      "Read the following coded text and track the frequency of each coded word. Find the three "
      "most "
      "frequently appeared coded words. " +
      join(text, " ") + "\n";
  sample.question =
      "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three "
      "most frequently appeared words in the above coded text?";
  sample.answer_prefix =
      " Answer: According to the coded text above, the three most frequently appeared words are:";
  sample.answers.assign(words.begin() + 1, words.begin() + 4);
  sample.max_new_tokens = 50;
  sample.metric = Metric::All;
  return sample;
}

class FrequentWordsTask final : public GeneratedTask {
 public:
  FrequentWordsTask() : GeneratedTask("ruler:fwe") {}

 protected:
  Result<Plan> plan(const Tokenizer&, const TaskOptions& options) const override {
    const int vocabulary = std::max(5, (options.context_tokens - 50) / 50);
    Plan plan;
    plan.make = [this, vocabulary, seed = options.seed](int index, int units) {
      return frequent_words_sample(units, vocabulary,
                                   Random(seed, name(), static_cast<std::uint64_t>(index)));
    };
    // The ranks 2, 3, 4 and 5 differ in their counts from 60 words on.
    plan.range = {60, options.context_tokens};
    plan.guess = options.context_tokens / 3;
    plan.n_samples = options.samples;
    return plan;
  }
};

}  // namespace

std::unique_ptr<Task> make_common_words() { return std::make_unique<CommonWordsTask>(); }
std::unique_ptr<Task> make_frequent_words() { return std::make_unique<FrequentWordsTask>(); }

}  // namespace qevict
