// A user's own data: a JSON object a line, the fields of Sample.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <climits>
#include <map>

#include "eval/data.h"
#include "eval/fit.h"
#include "eval/tasks/tasks.h"

namespace qevict {
namespace {

constexpr std::array kFields = {
    "id",   "context", "question", "answers",        "max_new_tokens", "metric", "answer_prefix",
    "chat", "classes", "stop",     "first_line_only"};

// A name with a slip of the pen must not go unnoticed: most fields may be left out.
Status check_names(const JsonRecord& record) {
  for (const auto& [name, value] : record.json().items()) {
    if (std::ranges::find(kFields, name) == kFields.end()) {
      return record.error(name.c_str(), fmt::format("unknown, use {}", fmt::join(kFields, ", ")));
    }
  }
  return {};
}

Status read_required(const JsonRecord& record, Sample& sample) {
  for (const auto& [field, target] : {std::pair{"id", &sample.id},
                                      {"context", &sample.context},
                                      {"question", &sample.question}}) {
    Result<std::string> text = record.text(field);
    if (!text) return std::unexpected(text.error());
    *target = std::move(*text);
  }
  if (sample.id.empty()) return record.error("id", "is empty");
  if (sample.context.empty() && sample.question.empty()) {
    return record.error("question", "is empty, as the context is");
  }
  Result<std::vector<std::string>> answers = record.texts("answers");
  if (!answers) return std::unexpected(answers.error());
  if (answers->empty()) return record.error("answers", "is empty");
  for (const std::string& answer : *answers) {
    if (answer.empty()) return record.error("answers", "has an empty string");
  }
  sample.answers = std::move(*answers);
  const auto max_new = record.integer("max_new_tokens", 1, INT_MAX);
  if (!max_new) return std::unexpected(max_new.error());
  sample.max_new_tokens = static_cast<int>(*max_new);
  const Result<std::string> name = record.text("metric");
  if (!name) return std::unexpected(name.error());
  const Result<Metric> metric = parse_metric(*name);
  if (!metric) return record.error("metric", metric.error().message);
  sample.metric = *metric;
  return {};
}

Status read_optional(const JsonRecord& record, Sample& sample) {
  if (record.has("answer_prefix")) {
    Result<std::string> text = record.text("answer_prefix");
    if (!text) return std::unexpected(text.error());
    sample.answer_prefix = std::move(*text);
  }
  for (const auto& [field, target] :
       {std::pair{"chat", &sample.chat}, {"first_line_only", &sample.first_line_only}}) {
    if (!record.has(field)) continue;
    const Result<bool> flag = record.flag(field);
    if (!flag) return std::unexpected(flag.error());
    *target = *flag;
  }
  for (const auto& [field, target] :
       {std::pair{"classes", &sample.classes}, {"stop", &sample.stop}}) {
    if (!record.has(field)) continue;
    Result<std::vector<std::string>> texts = record.texts(field);
    if (!texts) return std::unexpected(texts.error());
    *target = std::move(*texts);
  }
  for (const std::string& stop : sample.stop) {
    if (stop.empty()) return record.error("stop", "has an empty string");
  }
  if (sample.metric == Metric::Classification && sample.classes.empty()) {
    return record.error("classes", "missing or empty, and the metric is classification");
  }
  return {};
}

// The two texts are read as one: they must not run together.
void separate(Sample& sample) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  if (sample.context.empty() || sample.question.empty()) return;
  if (is_blank(sample.context.back()) || is_blank(sample.question.front())) return;
  sample.question.insert(0, "\n\n");
}

class FileTask final : public Task {
 public:
  explicit FileTask(std::string path) : path_(std::move(path)) {}

  // The whole file is checked, and the first samples are taken.
  Result<std::vector<Sample>> samples(const Tokenizer& tokenizer,
                                      const TaskOptions& options) const override {
    std::vector<Sample> samples;
    std::map<std::string, std::string> ids;  // -> where
    Status read = read_json_lines(path_, [&](const JsonRecord& record) -> Status {
      Sample sample;
      if (Status s = check_names(record); !s) return s;
      if (Status s = read_required(record, sample); !s) return s;
      if (Status s = read_optional(record, sample); !s) return s;
      const auto [first, is_new] = ids.try_emplace(sample.id, record.where());
      if (!is_new) {
        return record.error("id", fmt::format("'{}' is also that of {}", sample.id, first->second));
      }
      if (sample.max_new_tokens > options.context_tokens) {
        return record.error("max_new_tokens",
                            fmt::format("{}, more than the context ({})", sample.max_new_tokens,
                                        options.context_tokens));
      }
      separate(sample);
      if (static_cast<int>(samples.size()) >= options.samples) return {};
      samples.push_back(std::move(sample));
      return check_fits(tokenizer, options.context_tokens, samples.back(), record.where());
    });
    if (!read) return std::unexpected(read.error());
    if (samples.empty()) return bad_input("no samples (" + path_ + "): write one a line");
    return samples;
  }

 private:
  std::string path_;
};

}  // namespace

std::unique_ptr<Task> make_file_task(const std::string& path) {
  return std::make_unique<FileTask>(path);
}

}  // namespace qevict
