#include <fmt/format.h>

#include <charconv>
#include <span>

#include "eval/task.h"
#include "eval/tasks/tasks.h"

namespace qevict {
namespace {

constexpr const char* kRuler = "RULER, arXiv 2404.06654";
constexpr const char* kLongBench = "LongBench, arXiv 2308.14508";
constexpr const char* kGsm8k = "GSM8K, arXiv 2110.14168";
constexpr const char* kLostInTheMiddle = "Lost in the Middle, arXiv 2307.03172";

using Argument = const std::string&;

TaskSpec niah(const std::string& variant) {
  return {"ruler:niah_" + variant, kRuler, [variant](Argument) { return make_niah(variant); }};
}
TaskSpec longbench(const std::string& name) {
  return {"longbench:" + name, kLongBench, [name](Argument) { return make_longbench(name); }};
}
TaskSpec gsm8k(const std::string& name, Gsm8kForm form) {
  return {name, kGsm8k, [form](Argument) { return make_gsm8k(form); }, 0.25};  // as in the paper
}

// "kv_retrieval:75": the published file with as many keys.
std::unique_ptr<Task> kv_retrieval_of(const std::string& argument) {
  int n = 0;
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), n);
  const bool whole = error == std::errc() && end == argument.data() + argument.size();
  return whole && n > 0 ? make_kv_retrieval(n) : nullptr;
}
std::unique_ptr<Task> file_of(const std::string& path) {
  return path.empty() ? nullptr : make_file_task(path);
}

const std::vector<TaskSpec>& table() {
  static const std::vector<TaskSpec> kTasks = {
      niah("single_1"),
      niah("single_2"),
      niah("single_3"),
      niah("multikey_1"),
      niah("multikey_2"),
      niah("multikey_3"),
      niah("multivalue"),
      niah("multiquery"),
      {"ruler:vt", kRuler, [](Argument) { return make_variable_tracking(); }},
      {"ruler:cwe", kRuler, [](Argument) { return make_common_words(); }},
      {"ruler:fwe", kRuler, [](Argument) { return make_frequent_words(); }},
      {"ruler:qa_1", "RULER on SQuAD 2.0, arXiv 1806.03822", [](Argument) { return make_squad(); }},
      {"ruler:qa_2", "RULER on HotpotQA, arXiv 1809.09600",
       [](Argument) { return make_hotpotqa(); }},
      longbench("narrativeqa"),
      longbench("qasper"),
      longbench("multifieldqa_en"),
      longbench("hotpotqa"),
      longbench("2wikimqa"),
      longbench("musique"),
      longbench("gov_report"),
      longbench("qmsum"),
      longbench("multi_news"),
      longbench("trec"),
      longbench("triviaqa"),
      longbench("samsum"),
      gsm8k("gsm8k", Gsm8kForm::ZeroShotChat),
      gsm8k("gsm8k_cot", Gsm8kForm::EightShot),
      gsm8k("gsm8k_cot_strict", Gsm8kForm::EightShotStrict),
      {"needle", "Needle in a haystack, github.com/gkamradt/LLMTest_NeedleInAHaystack",
       [](Argument) { return make_needle_grid(); }},
      {"kv_retrieval", kLostInTheMiddle, [](Argument) { return make_kv_retrieval(0); }},
      {"kv_retrieval:", kLostInTheMiddle, kv_retrieval_of},
      {"longchat", "LongChat lines, lmsys.org/blog/2023-06-29-longchat",
       [](Argument) { return make_longchat_lines(); }},
      {"passkey", "Landmark attention, arXiv 2305.16300", [](Argument) { return make_passkey(); }},
      {"file:", "JSON lines", file_of},
  };
  return kTasks;
}

std::vector<const TaskSpec*> members(std::string_view group) {
  std::vector<const TaskSpec*> found;
  for (const TaskSpec& spec : table()) {
    if (spec.name.starts_with(std::string(group) + ":") && !spec.name.ends_with(':')) {
      found.push_back(&spec);
    }
  }
  return found;
}
bool is_group(std::string_view name) { return name == "ruler" || name == "longbench"; }

Error unknown_task(std::string_view name) {
  std::string known = "ruler, longbench";
  for (const TaskSpec& spec : table()) known += ", " + spec.name;
  return {ErrorCode::BadInput,
          fmt::format("unknown task '{}' (--tasks): use one of {}", name, known)};
}

}  // namespace

std::span<const TaskSpec> tasks() { return table(); }

std::vector<std::string> expand_task(std::string_view name, const TaskOptions& options) {
  if (!is_group(name)) return {std::string(name)};
  std::vector<std::string> names, available;
  for (const TaskSpec* spec : members(name)) {
    names.push_back(spec->name);
    const std::string set = spec->name.substr(name.size() + 1);
    if (name == "longbench" && longbench_available(set, options.data_dir)) {
      available.push_back(spec->name);
    }
  }
  // Without any data: all of them, so that the first one says what is missing.
  return available.empty() ? names : available;
}

Result<std::unique_ptr<Task>> make_task(std::string_view name) {
  for (const TaskSpec& spec : table()) {
    const bool takes_argument = spec.name.ends_with(':');
    if (takes_argument ? !name.starts_with(spec.name) : name != spec.name) continue;
    std::unique_ptr<Task> task =
        spec.make(takes_argument ? std::string(name.substr(spec.name.size())) : "");
    if (task) return task;
  }
  return std::unexpected(unknown_task(name));
}

}  // namespace qevict
