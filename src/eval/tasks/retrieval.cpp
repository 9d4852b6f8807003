// Look-ups: the value of a key in a JSON object of UUIDs, the number of a line in a record of
// lines.
#include <fmt/format.h>

#include <algorithm>

#include "eval/data.h"
#include "eval/generated_task.h"
#include "eval/random.h"
#include "eval/tasks/tasks.h"

namespace qevict {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// The prompt of Lost in the Middle; its last words begin the answer.
Sample kv_sample(const Pairs& pairs, const std::string& key, const std::string& value) {
  std::string json;
  for (const auto& [k, v] : pairs) {
    fmt::format_to(std::back_inserter(json), "{}\"{}\": \"{}\"", json.empty() ? "{" : ",\n ", k, v);
  }
  Sample sample;
  sample.context =
      "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON "
      "data:\n" +
      json + "}\n\n";
  sample.question = fmt::format("Key: \"{}\"\n", key);
  sample.answer_prefix = "Corresponding value:";
  sample.answers = {value};
  sample.max_new_tokens = 64;
  sample.metric = Metric::All;
  return sample;
}

class GeneratedKvTask final : public GeneratedTask {
 public:
  GeneratedKvTask() : GeneratedTask("kv_retrieval") {}

 protected:
  Result<Plan> plan(const Tokenizer&, const TaskOptions& options) const override {
    Plan plan;
    plan.make = [this, seed = options.seed](int index, int units) {
      Random random(seed, name(), static_cast<std::uint64_t>(index));
      Pairs pairs;
      for (int i = 0; i < units; ++i) {
        std::string key = random_uuid(random);
        pairs.emplace_back(std::move(key), random_uuid(random));
      }
      const auto& [key, value] = pairs[static_cast<std::size_t>(spread(index) * units)];
      return kv_sample(pairs, key, value);
    };
    plan.range = {1, options.context_tokens};
    plan.guess = std::max(1, options.context_tokens / 80);
    plan.n_samples = options.samples;
    return plan;
  }
};

class PublishedKvTask final : public Task {
 public:
  explicit PublishedKvTask(int n_keys) : n_keys_(n_keys) {}

  Result<std::vector<Sample>> samples(const Tokenizer& tokenizer,
                                      const TaskOptions& options) const override {
    const std::string name = fmt::format("kv_retrieval/kv-retrieval-{}_keys.jsonl", n_keys_);
    const auto path = require_data(options.data_dir, "kv_retrieval", {name, name + ".gz"});
    if (!path) return std::unexpected(path.error());
    std::vector<Sample> samples;
    Status read = read_json_lines(*path, [&](const JsonRecord& record) -> Status {
      if (static_cast<int>(samples.size()) >= options.samples) return {};
      Result<Sample> sample = read_sample(record);
      if (!sample) return std::unexpected(sample.error());
      sample->id = std::to_string(samples.size());
      samples.push_back(std::move(*sample));
      return check_fits(tokenizer, options.context_tokens, samples.back(), record.where());
    });
    if (!read) return std::unexpected(read.error());
    return samples;
  }

 private:
  static Result<Sample> read_sample(const JsonRecord& record) {
    const auto key = record.text("key");
    if (!key) return std::unexpected(key.error());
    const auto value = record.text("value");
    if (!value) return std::unexpected(value.error());
    if (!record.has("ordered_kv_records")) return record.error("ordered_kv_records", "missing");
    Pairs pairs;
    for (const Json& pair : record.json()["ordered_kv_records"]) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
        return record.error("ordered_kv_records", "not a list of pairs of strings");
      }
      pairs.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
    }
    return kv_sample(pairs, *key, *value);
  }

  int n_keys_;
};

// A record of LongChat's test cases in its parts.
struct LinesRecord {
  std::string head, tail;
  std::vector<std::string> lines;
  std::size_t asked = 0;  // index of the line
  std::string number;
};

Result<LinesRecord> read_lines_record(const JsonRecord& record) {
  const auto prompt = record.text("prompt");
  if (!prompt) return std::unexpected(prompt.error());
  const auto correct = record.text("correct_line");
  if (!correct) return std::unexpected(correct.error());
  const auto number = record.integer("expected_number", INT64_MIN, INT64_MAX);
  if (!number) return std::unexpected(number.error());
  constexpr std::string_view kOver = "\nNow the record is over";
  const std::size_t first = prompt->find("\nline "), over = prompt->find(kOver);
  if (first == std::string::npos || over == std::string::npos || over < first) {
    return record.error("prompt", "has no lines between a head and \"Now the record is over\"");
  }
  LinesRecord parts;
  parts.head = prompt->substr(0, first + 1);
  parts.tail = prompt->substr(over);
  parts.number = std::to_string(*number);
  bool found = false;
  for (std::size_t at = first + 1; at < over;) {
    const std::size_t end = std::min(prompt->find('\n', at), over - 1) + 1;
    parts.lines.push_back(prompt->substr(at, end - at));
    if (parts.lines.back() == *correct) {
      parts.asked = parts.lines.size() - 1;
      found = true;
    }
    at = end;
  }
  if (!found) return record.error("correct_line", "is not in the prompt");
  return parts;
}

// As many neighbouring lines as fit; the one that is asked for keeps its depth.
Sample lines_sample(const LinesRecord& record, int n_lines) {
  const std::size_t n = std::min(static_cast<std::size_t>(n_lines), record.lines.size());
  const std::size_t first = record.asked * (record.lines.size() - n) / record.lines.size();
  Sample sample;
  sample.context = record.head;
  for (std::size_t i = first; i < first + n; ++i) sample.context += record.lines[i];
  sample.question = record.tail;
  sample.answers = {record.number};
  sample.max_new_tokens = 32;
  sample.metric = Metric::ExactNumber;
  return sample;
}

class LongchatTask final : public GeneratedTask {
 public:
  LongchatTask() : GeneratedTask("longchat") {}

 protected:
  Result<Plan> plan(const Tokenizer&, const TaskOptions& options) const override {
    const auto path = require_data(options.data_dir, "longchat", {"longchat/200_lines.jsonl"});
    if (!path) return std::unexpected(path.error());
    auto records = std::make_shared<std::vector<LinesRecord>>();
    Status read = read_json_lines(*path, [&](const JsonRecord& record) -> Status {
      Result<LinesRecord> parts = read_lines_record(record);
      if (!parts) return std::unexpected(parts.error());
      records->push_back(std::move(*parts));
      return {};
    });
    if (!read) return std::unexpected(read.error());
    std::size_t most = 1;
    for (const LinesRecord& record : *records) most = std::max(most, record.lines.size());
    Plan plan;
    plan.make = [records](int index, int units) {
      return lines_sample((*records)[static_cast<std::size_t>(index)], units);
    };
    plan.range = {1, static_cast<int>(most)};
    plan.guess = options.context_tokens / 30;
    plan.n_samples = std::min(options.samples, static_cast<int>(records->size()));
    return plan;
  }
};

}  // namespace

std::unique_ptr<Task> make_kv_retrieval(int n_keys) {
  if (n_keys == 0) return std::make_unique<GeneratedKvTask>();
  return std::make_unique<PublishedKvTask>(n_keys);
}
std::unique_ptr<Task> make_longchat_lines() { return std::make_unique<LongchatTask>(); }

}  // namespace qevict
