// RULER's variable tracking: a chain of assignments in noise, after one solved example.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "eval/generated_task.h"
#include "eval/random.h"
#include "eval/tasks/tasks.h"

namespace qevict {
namespace {

constexpr int kHops = 4;
constexpr int kNameLetters = 5, kExampleNameLetters = 3;
constexpr int kExampleTokens = 500, kExampleStep = 5;

struct Chain {
  std::vector<std::string> names;
  std::string value;
  std::string text;  // noise with the assignments
};

Chain make_chain(Random& names, Random& positions, int n_letters, int n_noise) {
  Chain chain;
  std::set<std::string> used;
  while (chain.names.size() < kHops + 1) {
    std::string name;
    for (int i = 0; i < n_letters; ++i) name.push_back(static_cast<char>('A' + names.below(26)));
    if (used.insert(name).second) chain.names.push_back(name);
  }
  chain.value = std::to_string(names.between(10'000, 99'999));
  std::vector<std::string> lines(static_cast<std::size_t>(n_noise), kNoiseSentence);
  std::vector<std::size_t> at = positions.sample(lines.size(), chain.names.size());
  std::sort(at.begin(), at.end());
  for (std::size_t i = 0; i < at.size(); ++i) {
    const std::string line =
        i == 0 ? fmt::format("VAR {} = {}", chain.names[0], chain.value)
               : fmt::format("VAR {} = VAR {} ", chain.names[i], chain.names[i - 1]);
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at[i] + i), line);
  }
  chain.text = join(lines, "\n");
  return chain;
}

Sample make_sample(const Chain& chain) {
  Sample sample;
  sample.context =
      "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n" +
      chain.text + "\n";
  sample.question =
      fmt::format("Question: Find all variables that are assigned the value {} in the text above.",
                  chain.value);
  sample.answer_prefix = fmt::format(
      " Answer: According to the chain(s) of variable assignment in the text above, {} variables "
      "are "
      "assigned the value {}, they are: ",
      kHops + 1, chain.value);
  sample.answers = chain.names;
  sample.max_new_tokens = 30;
  sample.metric = Metric::All;
  return sample;
}

// The same noise for every sample, other names and another value.
std::string make_example(std::uint64_t seed, int index, int n_noise) {
  Random names(seed, "ruler:vt example", static_cast<std::uint64_t>(index));
  Random positions(seed, "ruler:vt example positions");
  const Sample solved = make_sample(make_chain(names, positions, kExampleNameLetters, n_noise));
  return solved.context + solved.question + solved.answer_prefix + " " + join(solved.answers, " ") +
         "\n\n";
}

class TrackingTask final : public GeneratedTask {
 public:
  TrackingTask() : GeneratedTask("ruler:vt") {}

 protected:
  Result<Plan> plan(const Tokenizer& tokenizer, const TaskOptions& options) const override {
    const Result<int> n_noise = example_noise(tokenizer, options.seed);
    if (!n_noise) return std::unexpected(n_noise.error());
    Plan plan;
    plan.make = [this, seed = options.seed, n = *n_noise](int index, int units) {
      Random random(seed, name(), static_cast<std::uint64_t>(index));
      Sample sample = make_sample(make_chain(random, random, kNameLetters, units));
      sample.context.insert(0, make_example(seed, index, n));
      return sample;
    };
    plan.range = {kHops + 1, options.context_tokens};
    plan.guess = options.context_tokens / 30;
    plan.n_samples = options.samples;
    return plan;
  }

 private:
  // The longest example within kExampleTokens, in steps of kExampleStep sentences.
  static Result<int> example_noise(const Tokenizer& tokenizer, std::uint64_t seed) {
    int n = kExampleStep;
    while (true) {
      const auto tokens = tokenizer.encode(make_example(seed, 0, n + kExampleStep), false, false);
      if (!tokens) return std::unexpected(tokens.error());
      if (tokens->size() > kExampleTokens) return n;
      n += kExampleStep;
    }
  }
};

}  // namespace

std::unique_ptr<Task> make_variable_tracking() { return std::make_unique<TrackingTask>(); }

}  // namespace qevict
