// GSM8K (arXiv 2110.14168): word problems, the answer is a number. Zero-shot in a chat, or after
// the eight solved problems of lm-evaluation-harness' gsm8k_cot.
#include <fmt/format.h>

#include <algorithm>

#include "eval/data.h"
#include "eval/fit.h"
#include "eval/random.h"
#include "eval/tasks/tasks.h"
#include "eval/text.h"

namespace qevict {
namespace {

struct Problem {
  std::string question, answer;
};

Result<std::vector<Problem>> read_problems(std::string_view data_dir) {
  const auto path = require_data(data_dir, "gsm8k", {"gsm8k/test.jsonl"});
  if (!path) return std::unexpected(path.error());
  std::vector<Problem> problems;
  Status read = read_json_lines(*path, [&](const JsonRecord& record) -> Status {
    const auto question = record.text("question");
    if (!question) return std::unexpected(question.error());
    const auto solution = record.text("answer");
    if (!solution) return std::unexpected(solution.error());
    const std::size_t mark = solution->rfind("####");
    if (mark == std::string::npos) return record.error("answer", "has no #### before its number");
    problems.push_back(
        {*question, std::string(trim(std::string_view(*solution).substr(mark + 4)))});
    return {};
  });
  if (!read) return std::unexpected(read.error());
  return problems;
}

// The solved problems as they stand before the question.
Result<std::string> read_examples(std::string_view data_dir) {
  const auto path = require_data(data_dir, "gsm8k_cot", {"gsm8k/cot_examples.jsonl"});
  if (!path) return std::unexpected(path.error());
  std::string text;
  Status read = read_json_lines(*path, [&](const JsonRecord& record) -> Status {
    const auto question = record.text("question");
    if (!question) return std::unexpected(question.error());
    const auto target = record.text("target");
    if (!target) return std::unexpected(target.error());
    text += fmt::format("Q: {}\nA: {}\n\n", *question, *target);
    return {};
  });
  if (!read) return std::unexpected(read.error());
  return text;
}

Sample make_sample(Gsm8kForm form, const Problem& problem, const std::string& examples) {
  Sample sample;
  sample.answers = {problem.answer};
  sample.metric = form == Gsm8kForm::EightShotStrict ? Metric::StrictNumber : Metric::ExactNumber;
  if (form == Gsm8kForm::ZeroShotChat) {
    sample.context = problem.question;
    sample.question =
        "\n\nSolve the problem step by step. End with the sentence \"The answer is X.\", where X "
        "is "
        "a number.";
    sample.max_new_tokens = 512;
    return sample;
  }
  sample.context = examples;
  sample.question = fmt::format("Q: {}\nA:", problem.question);
  sample.max_new_tokens = 256;
  sample.chat = false;
  sample.stop = {"Q:", "</s>", "<|im_end|>"};
  return sample;
}

class Gsm8kTask final : public Task {
 public:
  explicit Gsm8kTask(Gsm8kForm form) : form_(form) {}

  Result<std::vector<Sample>> samples(const Tokenizer& tokenizer,
                                      const TaskOptions& options) const override {
    const Result<std::vector<Problem>> problems = read_problems(options.data_dir);
    if (!problems) return std::unexpected(problems.error());
    Result<std::string> examples = "";
    if (form_ != Gsm8kForm::ZeroShotChat) examples = read_examples(options.data_dir);
    if (!examples) return std::unexpected(examples.error());
    const std::size_t n = std::min(problems->size(), static_cast<std::size_t>(options.samples));
    std::vector<Sample> samples;
    for (const std::size_t i : Random(options.seed, "gsm8k").sample(problems->size(), n)) {
      samples.push_back(make_sample(form_, (*problems)[i], *examples));
      samples.back().id = fmt::format("test-{}", i);
      Status s = check_fits(tokenizer, options.context_tokens, samples.back(),
                            "gsm8k, " + samples.back().id);
      if (!s) return std::unexpected(s.error());
    }
    return samples;
  }

 private:
  Gsm8kForm form_;
};

}  // namespace

std::unique_ptr<Task> make_gsm8k(Gsm8kForm form) { return std::make_unique<Gsm8kTask>(form); }

}  // namespace qevict
