// RULER's needles in a haystack: sentences with magic numbers among noise, essays or other needles.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "eval/generated_task.h"
#include "eval/random.h"
#include "eval/tasks/tasks.h"

namespace qevict {
namespace {

enum class Haystack { Noise, Essay, Needles };
enum class Kind { Word, Number, Uuid };

struct Variant {
  const char* name;
  Haystack haystack;
  Kind key, value;
  int n_keys, n_values, n_queries;
};
constexpr std::array<Variant, 8> kVariants = {{
    {"single_1", Haystack::Noise, Kind::Word, Kind::Number, 1, 1, 1},
    {"single_2", Haystack::Essay, Kind::Word, Kind::Number, 1, 1, 1},
    {"single_3", Haystack::Essay, Kind::Word, Kind::Uuid, 1, 1, 1},
    {"multikey_1", Haystack::Essay, Kind::Word, Kind::Number, 4, 1, 1},
    {"multikey_2", Haystack::Needles, Kind::Word, Kind::Number, 1, 1, 1},
    {"multikey_3", Haystack::Needles, Kind::Uuid, Kind::Uuid, 1, 1, 1},
    {"multivalue", Haystack::Essay, Kind::Word, Kind::Number, 1, 4, 1},
    {"multiquery", Haystack::Essay, Kind::Word, Kind::Number, 4, 1, 4},
}};

struct Words {
  std::vector<std::string> adjectives, nouns, essays;
};

// "adjective-noun", seven digits, or a version 4 UUID.
std::string random_item(Kind kind, const Words& words, Random& random) {
  switch (kind) {
    case Kind::Word:
      return words.adjectives[random.below(words.adjectives.size())] + "-" +
             words.nouns[random.below(words.nouns.size())];
    case Kind::Number:
      return std::to_string(random.between(1'000'000, 9'999'999));
    case Kind::Uuid:
      return random_uuid(random);
  }
  return "";
}

class NiahBuilder {
 public:
  NiahBuilder(const Variant& variant, const Words& words, Random random)
      : variant_(variant), words_(words), random_(std::move(random)) {}

  Sample build(int units) {
    std::vector<std::string> keys, needles;
    std::vector<std::vector<std::string>> values;
    for (int k = 0; k < variant_.n_keys; ++k) {
      keys.push_back(fresh(variant_.key));
      values.emplace_back();
      for (int v = 0; v < variant_.n_values; ++v) {
        values.back().push_back(fresh(variant_.value));
        needles.push_back(sentence(keys.back(), values.back().back()));
      }
    }
    random_.shuffle(needles);
    Sample sample;
    std::vector<std::string> queries;
    for (const std::size_t i : random_.sample(keys.size(), as_size(variant_.n_queries))) {
      queries.push_back(keys[i]);
      sample.answers.insert(sample.answers.end(), values[i].begin(), values[i].end());
    }
    write(sample, haystack(needles, units), queries);
    return sample;
  }

 private:
  static std::size_t as_size(int n) { return static_cast<std::size_t>(n); }
  const char* plural() const { return variant_.value == Kind::Uuid ? "uuids" : "numbers"; }

  // No key or value comes twice: what a question asks is unambiguous.
  std::string fresh(Kind kind) {
    while (true) {
      std::string item = random_item(kind, words_, random_);
      if (used_.insert(item).second) return item;
    }
  }

  std::string sentence(const std::string& key, const std::string& value) const {
    return fmt::format("One of the special magic {} for {} is: {}.", plural(), key, value);
  }

  std::string haystack(const std::vector<std::string>& needles, int units) {
    if (variant_.haystack == Haystack::Essay) return essay(needles, units);
    std::vector<std::string> lines;
    for (int i = 0; i < units; ++i) {
      lines.push_back(variant_.haystack == Haystack::Noise
                          ? std::string(kNoiseSentence)
                          : sentence(fresh(variant_.key), fresh(variant_.value)));
    }
    std::vector<std::size_t> at = random_.sample(lines.size(), needles.size());
    std::sort(at.rbegin(), at.rend());
    for (std::size_t i = 0; i < at.size(); ++i) {
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at[i]), needles[i]);
    }
    return join(lines, "\n");
  }

  // Needles go between sentences, at depths out of 40 that spread over the text.
  std::string essay(const std::vector<std::string>& needles, int n_words) {
    constexpr std::size_t kDepths = 40;
    std::vector<std::string> sentences = essay_sentences(words_.essays, n_words);
    std::vector<std::size_t> at;
    for (const std::size_t depth : random_.sample(kDepths, needles.size())) {
      const double percent = std::nearbyint(100.0 * static_cast<double>(depth) / (kDepths - 1));
      at.push_back(static_cast<std::size_t>(static_cast<double>(sentences.size()) * percent / 100));
    }
    std::sort(at.rbegin(), at.rend());
    for (std::size_t i = 0; i < at.size(); ++i) {
      sentences.insert(sentences.begin() + static_cast<std::ptrdiff_t>(at[i]), needles[i]);
    }
    return join(sentences, " ");
  }

  void write(Sample& sample, const std::string& haystack, const std::vector<std::string>& queries) {
    std::string query = queries.front();
    for (std::size_t i = 1; i < queries.size(); ++i) {
      query += (i + 1 == queries.size() ? ", and " : ", ") + queries[i];
    }
    const bool one = variant_.n_queries * variant_.n_values == 1;
    std::string what = plural();
    if (one) what.pop_back();
    const char* is = one ? "is" : "are";
    sample.context = fmt::format(
        "{} special magic {} {} hidden within the following text. Make sure to memorize it. I will "
        "quiz you about the {} afterwards.\n{}\n",
        one ? "A" : "Some", what, is, what, haystack);
    sample.question =
        fmt::format("What {} the special magic {} for {} mentioned in the provided text?",
                    one ? "is" : "are all", what, query);
    sample.answer_prefix = fmt::format(
        " The special magic {} for {} mentioned in the provided text {}", what, query, is);
    sample.max_new_tokens = 128;
    sample.metric = Metric::All;
  }

  const Variant& variant_;
  const Words& words_;
  Random random_;
  std::set<std::string> used_;
};

class NiahTask final : public GeneratedTask {
 public:
  explicit NiahTask(const Variant& variant)
      : GeneratedTask(std::string("ruler:niah_") + variant.name), variant_(variant) {}

 protected:
  Result<Plan> plan(const Tokenizer&, const TaskOptions& options) const override {
    auto words = std::make_shared<Words>();
    if (variant_.key == Kind::Word) {
      auto adjectives = load_words(options.data_dir, "adjectivelist");
      if (!adjectives) return std::unexpected(adjectives.error());
      auto nouns = load_words(options.data_dir, "nounlist");
      if (!nouns) return std::unexpected(nouns.error());
      words->adjectives = std::move(*adjectives);
      words->nouns = std::move(*nouns);
    }
    if (variant_.haystack == Haystack::Essay) {
      auto essays = load_essay_words(options.data_dir);
      if (!essays) return std::unexpected(essays.error());
      words->essays = std::move(*essays);
    }
    Plan plan;
    plan.make = [this, words, seed = options.seed](int index, int units) {
      Random random(seed, name(), static_cast<std::uint64_t>(index));
      return NiahBuilder(variant_, *words, std::move(random)).build(units);
    };
    const bool essay = variant_.haystack == Haystack::Essay;
    plan.range = {variant_.n_keys * variant_.n_values, options.context_tokens};
    plan.guess = essay ? options.context_tokens * 3 / 4 : options.context_tokens / 30;
    plan.n_samples = options.samples;
    return plan;
  }

 private:
  const Variant& variant_;
};

}  // namespace

std::unique_ptr<Task> make_niah(const std::string& variant) {
  for (const Variant& known : kVariants) {
    if (variant == known.name) return std::make_unique<NiahTask>(known);
  }
  return nullptr;
}

}  // namespace qevict
