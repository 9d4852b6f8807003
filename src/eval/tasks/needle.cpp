// Needle in a haystack: one sentence in the essays, at every depth of several lengths; and the pass
// key in repeated sentences.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "eval/generated_task.h"
#include "eval/random.h"
#include "eval/tasks/tasks.h"

namespace qevict {
namespace {

constexpr int kLengths = 4;
constexpr std::array<const char*, 16> kPlaces = {
    "Antwerp", "Bergen", "Cordoba", "Dresden", "Esbjerg", "Florence", "Gdansk", "Haifa",
    "Izmir",   "Jaipur", "Kumasi",  "Lyon",    "Malmo",   "Nagoya",   "Odessa", "Porto"};

struct Cell {
  int context_tokens;
  double depth;  // 0..1
};

// `samples` cells: lengths in equal steps up to the context, and for each depths from start to end.
std::vector<Cell> make_grid(const TaskOptions& options) {
  std::vector<Cell> grid;
  const int n_lengths = std::min(kLengths, options.samples);
  for (int length = 1; length <= n_lengths; ++length) {
    const int n_depths =
        options.samples * length / n_lengths - options.samples * (length - 1) / n_lengths;
    for (int i = 0; i < n_depths; ++i) {
      const double depth = n_depths > 1 ? static_cast<double>(i) / (n_depths - 1) : 0.5;
      grid.push_back({options.context_tokens * length / n_lengths, depth});
    }
  }
  return grid;
}

void insert_at(std::vector<std::string>& sentences, double depth, std::string needle) {
  const auto at = static_cast<std::ptrdiff_t>(depth * static_cast<double>(sentences.size()) + 0.5);
  sentences.insert(sentences.begin() + at, std::move(needle));
}

class NeedleGridTask final : public GeneratedTask {
 public:
  NeedleGridTask() : GeneratedTask("needle") {}

 protected:
  Result<Plan> plan(const Tokenizer&, const TaskOptions& options) const override {
    auto loaded = load_essay_words(options.data_dir);
    if (!loaded) return std::unexpected(loaded.error());
    auto words = std::make_shared<std::vector<std::string>>(std::move(*loaded));
    auto grid = std::make_shared<std::vector<Cell>>(make_grid(options));
    Plan plan;
    plan.make = [this, words, grid, seed = options.seed](int index, int units) {
      return make_sample((*grid)[static_cast<std::size_t>(index)], *words, units,
                         Random(seed, name(), static_cast<std::uint64_t>(index)));
    };
    plan.context_tokens = [grid](int index) {
      return (*grid)[static_cast<std::size_t>(index)].context_tokens;
    };
    plan.range = {1, options.context_tokens};
    plan.guess = options.context_tokens / kLengths / 2;
    plan.n_samples = static_cast<int>(grid->size());
    return plan;
  }

 private:
  static Sample make_sample(const Cell& cell, const std::vector<std::string>& words, int n_words,
                            Random random) {
    const char* place = kPlaces[random.below(kPlaces.size())];
    const std::string number = std::to_string(random.between(100'000, 999'999));
    std::vector<std::string> sentences = essay_sentences(words, n_words);
    insert_at(sentences, cell.depth,
              fmt::format("The secret number of the harbour of {} is {}.", place, number));
    Sample sample;
    // What the report draws its map from.
    sample.id = fmt::format("length={},depth={:.0f}%", cell.context_tokens, 100.0 * cell.depth);
    sample.context = join(sentences, " ") + "\n\n";
    sample.question = fmt::format(
        "What is the secret number of the harbour of {}? Answer with the number alone.", place);
    sample.answers = {number};
    sample.max_new_tokens = 32;
    sample.metric = Metric::All;
    return sample;
  }
};

class PasskeyTask final : public GeneratedTask {
 public:
  PasskeyTask() : GeneratedTask("passkey") {}

 protected:
  Result<Plan> plan(const Tokenizer&, const TaskOptions& options) const override {
    Plan plan;
    plan.make = [this, seed = options.seed](int index, int units) {
      Random random(seed, name(), static_cast<std::uint64_t>(index));
      const std::string key = std::to_string(random.between(10'000, 99'999));
      std::vector<std::string> lines(static_cast<std::size_t>(units), kNoiseSentence);
      insert_at(lines, spread(index),
                fmt::format("The pass key is {0}. Remember it. {0} is the pass key.", key));
      Sample sample;
      sample.context =
          "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
          "it. I will quiz you about the important information there.\n" +
          join(lines, "\n") + "\n";
      sample.question = "What is the pass key?";
      sample.answer_prefix = " The pass key is";
      sample.answers = {key};
      sample.max_new_tokens = 16;
      sample.metric = Metric::All;
      return sample;
    };
    plan.range = {1, options.context_tokens};
    plan.guess = options.context_tokens / 30;
    plan.n_samples = options.samples;
    return plan;
  }
};

}  // namespace

std::unique_ptr<Task> make_needle_grid() { return std::make_unique<NeedleGridTask>(); }
std::unique_ptr<Task> make_passkey() { return std::make_unique<PasskeyTask>(); }

}  // namespace qevict
