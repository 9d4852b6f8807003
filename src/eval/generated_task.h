// Tasks whose samples are generated to the length of the context.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "eval/fit.h"
#include "eval/random.h"
#include "eval/task.h"

namespace qevict {

class GeneratedTask : public Task {
 public:
  explicit GeneratedTask(std::string name) : name_(std::move(name)) {}
  // Sample i is the same however many are made (but for the grid of `needle`). Its prompt, and its
  // answer of max_new_tokens, fill the context but for less than 1/256 and a unit.
  Result<std::vector<Sample>> samples(const Tokenizer& tokenizer,
                                      const TaskOptions& options) const final;

 protected:
  struct Plan {
    // Sample `index` with `units` of whatever makes it longer. Deterministic: the same arguments
    // give the same sample.
    std::function<Sample(int index, int units)> make;
    FitRange range;
    int guess = 1;                                 // units of the first sample
    int n_samples = 0;                             // as many as asked for, or as there are
    std::function<int(int index)> context_tokens;  // none: the options' for all samples
  };
  // Reads the data.
  virtual Result<Plan> plan(const Tokenizer& tokenizer, const TaskOptions& options) const = 0;
  const std::string& name() const { return name_; }

 private:
  std::string name_;  // the random stream, and in errors
};

// The haystacks of RULER and of the needle grid.
inline constexpr const char* kNoiseSentence =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// Paul Graham's essays, all of them, cut at white space.
Result<std::vector<std::string>> load_essay_words(std::string_view data_dir);
// The first n words, from the start again when there are fewer, cut behind full stops, question and
// exclamation marks.
std::vector<std::string> essay_sentences(const std::vector<std::string>& words, int n);

// Lists of the package wonderwords.
Result<std::vector<std::string>> load_words(std::string_view data_dir, std::string_view list);

// Version 4.
std::string random_uuid(Random& random);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace qevict
