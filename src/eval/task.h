// What an evaluation task is: a list of samples and a metric. A task is one file and one line in
// registry.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "qevict/result.h"

namespace qevict {

// Scores are 0..1 here; reports multiply by 100.
enum class Metric {
  All,             // share of the answers that the prediction contains, case-insensitive
  Part,            // 1 when it contains any of them
  F1,              // token F1, the best over the answers
  RougeL,          // ROUGE-L F, the best over the answers
  Classification,  // LongBench's
  ExactNumber,     // the last number of the prediction
  StrictNumber,    // the number in "The answer is X."
};
Result<Metric> parse_metric(std::string_view name);
const char* to_string(Metric metric);

// One question. The text that the model reads is context + question + answer_prefix; with the
// context-only protocol the cache is compressed right after `context`.
struct Sample {
  std::string id;
  std::string context;
  std::string question;
  std::string answer_prefix;
  std::vector<std::string> answers;
  std::vector<std::string> classes;  // of Metric::Classification
  int max_new_tokens = 128;
  Metric metric = Metric::All;
  bool chat = true;               // apply the model's chat template
  bool first_line_only = false;   // of the prediction, after leading newlines
  std::vector<std::string> stop;  // generation ends before any of these
};

struct TaskOptions {
  int context_tokens = 4096;  // of prompt and answer together
  int samples = 20;
  std::uint64_t seed = 42;
  // Folders of the sets that are read from files, separated by ':'; what they lack is looked for in
  // default_data_dir() (eval/data.h).
  std::string data_dir;
};

class Task {
 public:
  virtual ~Task() = default;
  // The same options and tokenizer give the same samples on every machine. Errors: BadInput with
  // file, line and field.
  virtual Result<std::vector<Sample>> samples(const Tokenizer& tokenizer,
                                              const TaskOptions& options) const = 0;
};

struct TaskSpec {
  std::string name;    // "ruler:vt"; one that ends in ':' takes the rest as its argument ("file:")
  std::string source;  // paper or data set
  std::function<std::unique_ptr<Task>(const std::string& argument)> make;
  // CacheConfig::local_share of policies that route by windows, where no local zone was asked for.
  double local_share = 0.0;
};
std::span<const TaskSpec> tasks();
// The error lists the known names; groups are none, expand_task() first.
Result<std::unique_ptr<Task>> make_task(std::string_view name);
// What a group stands for: "ruler" its 13 tasks, "longbench" those whose files are there. Any other
// name stands for itself.
std::vector<std::string> expand_task(std::string_view name, const TaskOptions& options);

// 0..1.
double score(const Sample& sample, std::string_view prediction);

}  // namespace qevict
