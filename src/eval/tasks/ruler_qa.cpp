// RULER's questions over documents: the right ones of SQuAD 2.0 or HotpotQA among others.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "eval/data.h"
#include "eval/generated_task.h"
#include "eval/random.h"
#include "eval/tasks/tasks.h"

namespace qevict {
namespace {

struct Question {
  std::string text;
  std::vector<std::string> answers;
  std::vector<std::size_t> documents;  // with the answer
  std::vector<std::size_t> related;    // of the same article: the first to be added
};

struct Corpus {
  std::vector<std::string> documents;
  std::vector<Question> questions;

  // Documents that come twice are one.
  std::size_t add(const std::string& document) {
    const auto [at, is_new] = known.try_emplace(document, documents.size());
    if (is_new) documents.push_back(document);
    return at->second;
  }
  std::map<std::string, std::size_t> known;
};

Status add_squad_paragraph(const JsonRecord& paragraph, const std::vector<std::size_t>& article,
                           std::size_t document, Corpus& corpus) {
  const auto questions = paragraph.records("qas");
  if (!questions) return std::unexpected(questions.error());
  for (const JsonRecord& record : *questions) {
    const auto impossible = record.flag("is_impossible");
    if (!impossible) return std::unexpected(impossible.error());
    if (*impossible) continue;
    const auto text = record.text("question");
    if (!text) return std::unexpected(text.error());
    const auto answers = record.records("answers");
    if (!answers) return std::unexpected(answers.error());
    Question question{*text, {}, {document}, {}};
    for (const JsonRecord& answer : *answers) {
      const auto answer_text = answer.text("text");
      if (!answer_text) return std::unexpected(answer_text.error());
      question.answers.push_back(*answer_text);
    }
    if (question.answers.empty()) return record.error("answers", "is empty");
    std::copy_if(article.begin(), article.end(), std::back_inserter(question.related),
                 [&](std::size_t other) { return other != document; });
    corpus.questions.push_back(std::move(question));
  }
  return {};
}

Status read_squad(std::string_view data_dir, Corpus& corpus) {
  const auto path =
      require_data(data_dir, "squad", {"squad/dev-v2.0.json", "squad/squad-v2.0-dev-half.json"});
  if (!path) return std::unexpected(path.error());
  const Result<Json> json = read_json(*path);
  if (!json) return std::unexpected(json.error());
  const auto articles = JsonRecord(*json, *path).records("data");
  if (!articles) return std::unexpected(articles.error());
  for (const JsonRecord& article : *articles) {
    const auto paragraphs = article.records("paragraphs");
    if (!paragraphs) return std::unexpected(paragraphs.error());
    std::vector<std::size_t> documents;
    for (const JsonRecord& paragraph : *paragraphs) {
      const auto text = paragraph.text("context");
      if (!text) return std::unexpected(text.error());
      documents.push_back(corpus.add(*text));
    }
    for (std::size_t i = 0; i < documents.size(); ++i) {
      Status s = add_squad_paragraph((*paragraphs)[i], documents, documents[i], corpus);
      if (!s) return s;
    }
  }
  return {};
}

// "context" is [[title, [sentence, ...]], ...] in the publisher's file, and {"title": [...],
// "sentences": [[...], ...]} in copies of it.
Status add_hotpot(const JsonRecord& record, const Json& json, Corpus& corpus) {
  const auto text = record.text("question");
  if (!text) return std::unexpected(text.error());
  const auto answer = record.text("answer");
  if (!answer) return std::unexpected(answer.error());
  Question question{*text, {*answer}, {}, {}};
  if (!record.has("context")) return record.error("context", "missing");
  const Json& context = json["context"];
  const bool columns = context.is_object() && context.contains("title") &&
                       context.contains("sentences") && context["title"].is_array() &&
                       context["sentences"].is_array();
  if (!columns && !context.is_array()) return record.error("context", "not a list of documents");
  const Json& rows = columns ? context["title"] : context;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool complete =
        columns ? i < context["sentences"].size() : rows[i].is_array() && rows[i].size() == 2;
    if (!complete) return record.error("context", fmt::format("document {} is incomplete", i));
    const Json& title = columns ? rows[i] : rows[i][0];
    const Json& sentences = columns ? context["sentences"][i] : rows[i][1];
    if (!title.is_string() || !sentences.is_array()) {
      return record.error("context", fmt::format("document {} is no title with sentences", i));
    }
    std::string document = title.get<std::string>() + "\n";
    for (const Json& sentence : sentences) {
      if (!sentence.is_string()) return record.error("context", "a sentence is not a string");
      document += sentence.get_ref<const std::string&>();
    }
    question.documents.push_back(corpus.add(document));
  }
  if (question.documents.empty()) return record.error("context", "has no documents");
  corpus.questions.push_back(std::move(question));
  return {};
}

Status read_hotpotqa(std::string_view data_dir, Corpus& corpus) {
  const auto path = require_data(
      data_dir, "hotpotqa",
      {"hotpotqa/hotpot_dev_distractor_v1.json", "hotpotqa/hotpot_distractor_sample100.jsonl"});
  if (!path) return std::unexpected(path.error());
  if (path->ends_with(".jsonl")) {
    return read_json_lines(
        *path, [&](const JsonRecord& record) { return add_hotpot(record, record.json(), corpus); });
  }
  const Result<Json> json = read_json(*path);
  if (!json) return std::unexpected(json.error());
  if (!json->is_array()) return bad_input("not a JSON array (" + *path + "): fetch it again");
  for (std::size_t i = 0; i < json->size(); ++i) {
    const JsonRecord record((*json)[i], fmt::format("{}, item {}", *path, i));
    if (!(*json)[i].is_object()) return bad_input("not an object (" + record.where() + ")");
    if (Status s = add_hotpot(record, (*json)[i], corpus); !s) return s;
  }
  return {};
}

std::string pick_documents(const Corpus& corpus, const Question& question, int n_documents,
                           Random& random) {
  std::vector<std::size_t> chosen = question.documents;
  const auto wanted = static_cast<std::size_t>(n_documents);
  for (const std::size_t i : random.sample(question.related.size(), question.related.size())) {
    if (chosen.size() < wanted) chosen.push_back(question.related[i]);
  }
  if (chosen.size() < wanted) {
    std::vector<bool> taken(corpus.documents.size(), false);
    for (const std::size_t i : chosen) taken[i] = true;
    for (const std::size_t i : random.sample(taken.size(), taken.size())) {
      if (chosen.size() < wanted && !taken[i]) chosen.push_back(i);
    }
  }
  random.shuffle(chosen);
  std::string text;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    fmt::format_to(std::back_inserter(text), "{}Document {}:\n{}", i == 0 ? "" : "\n\n", i + 1,
                   corpus.documents[chosen[i]]);
  }
  return text;
}

Sample make_sample(const Question& question, const std::string& documents) {
  constexpr const char* kInstruction =
      "Answer the question based on the given documents. Only give me the answer and do not output "
      "any other words.\n\n";
  Sample sample;
  sample.context =
      fmt::format("{}The following are given documents.\n\n{}\n\n", kInstruction, documents);
  sample.question = fmt::format("{}Question: {}", kInstruction, question.text);
  sample.answer_prefix = " Answer:";
  sample.answers = question.answers;
  sample.max_new_tokens = 32;
  sample.metric = Metric::Part;
  return sample;
}

using Reader = Status (*)(std::string_view, Corpus&);

class QuestionTask final : public GeneratedTask {
 public:
  QuestionTask(std::string name, Reader read) : GeneratedTask(std::move(name)), read_(read) {}

 protected:
  Result<Plan> plan(const Tokenizer&, const TaskOptions& options) const override {
    auto corpus = std::make_shared<Corpus>();
    if (Status s = read_(options.data_dir, *corpus); !s) return std::unexpected(s.error());
    if (corpus->questions.empty()) return bad_input(name() + ": the data has no questions");
    // Neighbours in the file share documents: a random order makes a few samples say more.
    std::vector<std::size_t> order(corpus->questions.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    Random(options.seed, name()).shuffle(order);
    Plan plan;
    plan.make = [this, corpus, order, seed = options.seed](int index, int units) {
      const Question& question = corpus->questions[order[static_cast<std::size_t>(index)]];
      Random random(seed, name(), static_cast<std::uint64_t>(index));
      return make_sample(question, pick_documents(*corpus, question, units, random));
    };
    plan.range = {1, static_cast<int>(corpus->documents.size())};
    plan.guess = options.context_tokens / 180;
    plan.n_samples = std::min(options.samples, static_cast<int>(order.size()));
    return plan;
  }

 private:
  Reader read_;
};

}  // namespace

std::unique_ptr<Task> make_squad() {
  return std::make_unique<QuestionTask>("ruler:qa_1", &read_squad);
}
std::unique_ptr<Task> make_hotpotqa() {
  return std::make_unique<QuestionTask>("ruler:qa_2", &read_hotpotqa);
}

}  // namespace qevict
