// LongBench's English sets: prompts and lengths from its configuration, its metrics, prompts that
// are too long cut in the middle.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "eval/data.h"
#include "eval/fit.h"
#include "eval/random.h"
#include "eval/tasks/tasks.h"

namespace qevict {
namespace {

struct Set {
  const char* name;
  Metric metric;
  // Few-shot sets: no chat template, and only the first line of the answer counts.
  bool few_shot = false;
};
constexpr std::array<Set, 12> kSets = {{{"narrativeqa", Metric::F1},
                                        {"qasper", Metric::F1},
                                        {"multifieldqa_en", Metric::F1},
                                        {"hotpotqa", Metric::F1},
                                        {"2wikimqa", Metric::F1},
                                        {"musique", Metric::F1},
                                        {"gov_report", Metric::RougeL},
                                        {"qmsum", Metric::RougeL},
                                        {"multi_news", Metric::RougeL},
                                        {"trec", Metric::Classification, true},
                                        {"triviaqa", Metric::F1, true},
                                        {"samsum", Metric::RougeL, true}}};

struct Entry {
  std::string id, context, input;
  std::vector<std::string> answers, classes;
};

Result<Entry> read_entry(const JsonRecord& record, std::size_t number) {
  Entry entry;
  for (const auto& [field, target] :
       {std::pair{"context", &entry.context}, {"input", &entry.input}}) {
    Result<std::string> text = record.text(field);
    if (!text) return std::unexpected(text.error());
    *target = std::move(*text);
  }
  Result<std::vector<std::string>> answers = record.texts("answers");
  if (!answers) return std::unexpected(answers.error());
  entry.answers = std::move(*answers);
  if (record.has("all_classes") && !record.json()["all_classes"].is_null()) {
    Result<std::vector<std::string>> classes = record.texts("all_classes");
    if (!classes) return std::unexpected(classes.error());
    entry.classes = std::move(*classes);
  }
  entry.id = fmt::format("test-{}", number);
  return entry;
}

// QMSum as its authors publish it: meetings with queries. LongBench has one entry a query.
Status read_meeting(const JsonRecord& record, std::vector<Entry>& entries) {
  const auto turns = record.records("meeting_transcripts");
  if (!turns) return std::unexpected(turns.error());
  std::string transcript;
  for (const JsonRecord& turn : *turns) {
    const auto speaker = turn.text("speaker");
    if (!speaker) return std::unexpected(speaker.error());
    const auto content = turn.text("content");
    if (!content) return std::unexpected(content.error());
    transcript += fmt::format("{}{}: {}", transcript.empty() ? "" : "\n", *speaker, *content);
  }
  for (const char* list : {"general_query_list", "specific_query_list"}) {
    const auto queries = record.records(list);
    if (!queries) return std::unexpected(queries.error());
    for (const JsonRecord& query : *queries) {
      const auto text = query.text("query");
      if (!text) return std::unexpected(text.error());
      const auto answer = query.text("answer");
      if (!answer) return std::unexpected(answer.error());
      entries.push_back({fmt::format("test-{}", entries.size()), transcript, *text, {*answer}, {}});
    }
  }
  return {};
}

std::string find_set(const std::string& name, std::string_view data_dir) {
  std::string path = find_data(data_dir, {"longbench/" + name + ".jsonl"});
  return path.empty() && name == "qmsum" ? find_data(data_dir, {"qmsum/test.jsonl"}) : path;
}

Result<std::vector<Entry>> read_entries(const std::string& name, std::string_view data_dir) {
  const std::string path = find_set(name, data_dir);
  if (path.empty()) {
    return std::unexpected(
        require_data(data_dir, "longbench", {"longbench/" + name + ".jsonl"}).error());
  }
  const bool meetings = path.ends_with("qmsum/test.jsonl");
  std::vector<Entry> entries;
  Status read = read_json_lines(path, [&](const JsonRecord& record) -> Status {
    if (meetings) return read_meeting(record, entries);
    Result<Entry> entry = read_entry(record, entries.size());
    if (!entry) return std::unexpected(entry.error());
    entries.push_back(std::move(*entry));
    return {};
  });
  if (!read) return std::unexpected(read.error());
  return entries;
}

// The prompt cut at {context} and {input}.
struct Template {
  std::string before, between, after;  // no {input}: all in `between`
  bool has_input = false;
  int max_new_tokens = 0;
};

Result<Template> read_template(const std::string& name, std::string_view data_dir) {
  const auto prompts = require_data(data_dir, "longbench", {"longbench/dataset2prompt.json"});
  if (!prompts) return std::unexpected(prompts.error());
  const auto lengths = require_data(data_dir, "longbench", {"longbench/dataset2maxlen.json"});
  if (!lengths) return std::unexpected(lengths.error());
  const Result<Json> prompts_json = read_json(*prompts);
  if (!prompts_json) return std::unexpected(prompts_json.error());
  const Result<Json> lengths_json = read_json(*lengths);
  if (!lengths_json) return std::unexpected(lengths_json.error());
  const JsonRecord prompt_record(*prompts_json, *prompts);
  const auto prompt = prompt_record.text(name.c_str());
  if (!prompt) return std::unexpected(prompt.error());
  constexpr int kMostNew = 1 << 20;
  const auto length = JsonRecord(*lengths_json, *lengths).integer(name.c_str(), 1, kMostNew);
  if (!length) return std::unexpected(length.error());
  constexpr std::string_view kContext = "{context}", kInput = "{input}";
  const std::size_t at = prompt->find(kContext);
  if (at == std::string::npos) return prompt_record.error(name.c_str(), "has no {context}");
  Template parts;
  parts.before = prompt->substr(0, at);
  parts.between = prompt->substr(at + kContext.size());
  parts.max_new_tokens = static_cast<int>(*length);
  if (const std::size_t input = parts.between.find(kInput); input != std::string::npos) {
    parts.after = parts.between.substr(input + kInput.size());
    parts.between.resize(input);
    parts.has_input = true;
  }
  return parts;
}

// Without the bytes of characters that were cut through: at the end of the first half and at the
// start of the second.
std::string whole_characters(std::string head, std::string_view tail) {
  const auto is_inner = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  std::size_t lead = head.size();
  while (lead > 0 && is_inner(head[lead - 1])) --lead;
  if (lead > 0) {
    const auto first = static_cast<unsigned char>(head[lead - 1]);
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    if (head.size() - (lead - 1) < length) head.resize(lead - 1);
  }
  while (!tail.empty() && is_inner(tail.front())) tail.remove_prefix(1);
  return head + std::string(tail);
}

// The first and the last tokens, as many of both as fit (LongBench's rule). The question is at the
// end and must stay whole.
Result<Sample> cut_middle(const Tokenizer& tokenizer, int context_tokens, Sample sample) {
  Result<int> count = count_prompt_tokens(tokenizer, sample);
  if (!count) return std::unexpected(count.error());
  const int limit = prompt_limit(context_tokens, sample);
  if (*count <= limit) return sample;
  const auto tokens = tokenizer.encode(sample.context + sample.question, false, false);
  if (!tokens) return std::unexpected(tokens.error());
  const int overhead = std::max(0, *count - static_cast<int>(tokens->size()));
  const std::span<const TokenId> all(*tokens);
  for (int half = (limit - overhead) / 2; half > 0; half -= (*count - limit + 1) / 2) {
    const auto n = static_cast<std::size_t>(half);
    const std::string text =
        whole_characters(tokenizer.decode(all.first(n)), tokenizer.decode(all.last(n)));
    if (!text.ends_with(sample.question)) break;
    Sample cut = sample;
    cut.context = text.substr(0, text.size() - sample.question.size());
    count = count_prompt_tokens(tokenizer, cut);
    if (!count) return std::unexpected(count.error());
    if (*count <= limit) return cut;
  }
  return bad_input(
      fmt::format("half of what the context leaves for the prompt ({}, {} of it for the answer) is "
                  "less than the question: give a longer --context",
                  context_tokens, sample.max_new_tokens));
}

class LongBenchTask final : public Task {
 public:
  explicit LongBenchTask(const Set& set) : set_(set) {}

  Result<std::vector<Sample>> samples(const Tokenizer& tokenizer,
                                      const TaskOptions& options) const override {
    const Result<Template> form = read_template(set_.name, options.data_dir);
    if (!form) return std::unexpected(form.error());
    const Result<std::vector<Entry>> entries = read_entries(set_.name, options.data_dir);
    if (!entries) return std::unexpected(entries.error());
    const std::size_t n = std::min(entries->size(), static_cast<std::size_t>(options.samples));
    std::vector<Sample> samples;
    for (const std::size_t i : Random(options.seed, set_.name).sample(entries->size(), n)) {
      Result<Sample> sample =
          cut_middle(tokenizer, options.context_tokens, make_sample(*form, (*entries)[i]));
      if (!sample) {
        return std::unexpected(
            Error{sample.error().code, fmt::format("longbench:{}, {}: {}", set_.name,
                                                   (*entries)[i].id, sample.error().message)});
      }
      samples.push_back(std::move(*sample));
    }
    return samples;
  }

 private:
  Sample make_sample(const Template& form, const Entry& entry) const {
    Sample sample;
    sample.id = entry.id;
    sample.context = form.before + entry.context;
    sample.question = form.between + (form.has_input ? entry.input : "") + form.after;
    sample.answers = entry.answers;
    sample.classes = entry.classes;
    sample.max_new_tokens = form.max_new_tokens;
    sample.metric = set_.metric;
    sample.chat = !set_.few_shot;
    sample.first_line_only = set_.few_shot;
    if (std::string_view(set_.name) == "samsum") sample.stop = {"\n"};
    return sample;
  }

  const Set& set_;
};

}  // namespace

std::unique_ptr<Task> make_longbench(const std::string& name) {
  for (const Set& set : kSets) {
    if (name == set.name) return std::make_unique<LongBenchTask>(set);
  }
  return nullptr;
}

bool longbench_available(const std::string& name, std::string_view data_dir) {
  return !find_set(name, data_dir).empty();
}

}  // namespace qevict
