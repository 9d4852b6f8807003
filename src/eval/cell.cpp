#include "eval/cell.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace qevict {
namespace {

// Reads the fields of one object; the first that is missing or of another kind is the error.
class FieldReader {
 public:
  FieldReader(const EvalJson& object, const std::string& where) : object_(object), where_(where) {}

  void text(const char* name, std::string& value) {
    const EvalJson* field = find(name);
    if (field == nullptr) return;
    if (!field->is_string()) return fail(name, "a text");
    value = field->get<std::string>();
  }
  template <typename T>
  void integer(const char* name, T& value) {
    const EvalJson* field = find(name);
    if (field == nullptr) return;
    if (!field->is_number_integer()) return fail(name, "an integer");
    value = field->get<T>();
  }
  void number(const char* name, double& value) {
    const EvalJson* field = find(name);
    if (field == nullptr) return;
    if (!field->is_number()) return fail(name, "a number");
    value = field->get<double>();
  }
  void boolean(const char* name, bool& value) {
    const EvalJson* field = find(name);
    if (field == nullptr) return;
    if (!field->is_boolean()) return fail(name, "true or false");
    value = field->get<bool>();
  }
  void budget(const char* name, std::optional<KvBudget>& value) {
    const EvalJson* field = find(name);
    if (field == nullptr || field->is_null()) return;
    if (!field->is_number() && !field->is_string()) return fail(name, "a budget");
    const Result<KvBudget> parsed =
        KvBudget::parse(field->is_string() ? field->get<std::string>() : field->dump());
    if (!parsed) return fail(name, "a budget");
    value = *parsed;
  }
  void protocol(const char* name, Protocol& value) {
    std::string name_of_it;
    text(name, name_of_it);
    if (!status_) return;
    const Result<Protocol> parsed = parse_protocol(name_of_it);
    if (!parsed) return fail(name, "whole or context");
    value = *parsed;
  }
  Status status() const { return status_; }

 private:
  const EvalJson* find(const char* name) {
    if (!status_) return nullptr;
    const auto field = object_.find(name);
    if (field != object_.end()) return &*field;
    fail(name, "there");
    return nullptr;
  }
  void fail(const char* name, std::string_view wanted) {
    if (!status_) return;
    status_ = bad_input(fmt::format("field '{}' is not {} ({}): it was not written by this program",
                                    name, wanted, where_));
  }

  const EvalJson& object_;
  const std::string& where_;
  Status status_;
};

}  // namespace

const char* to_string(Protocol protocol) {
  switch (protocol) {
    case Protocol::WholePrompt:
      return "whole";
    case Protocol::ContextOnly:
      return "context";
  }
  return "";
}

Result<Protocol> parse_protocol(const std::string& text) {
  for (const Protocol p : {Protocol::WholePrompt, Protocol::ContextOnly}) {
    if (text == to_string(p)) return p;
  }
  return bad_input(fmt::format("'{}' (--protocol): use whole or context", text));
}

EvalJson budget_json(const std::optional<KvBudget>& budget) {
  if (!budget) return nullptr;
  if (budget->unit == KvBudget::Unit::Ratio) return budget->value;
  return budget->to_string();
}

std::string budget_text(const std::optional<KvBudget>& budget) {
  return budget ? budget->to_string() : "null";
}

std::string CellResult::key() const {
  return fmt::format("{}\n{}\n{}\n{}\n{}", task, id, policy, budget_text(budget),
                     to_string(protocol));
}

std::string dump_line(const EvalJson& json) {
  return json.dump(-1, ' ', false, EvalJson::error_handler_t::replace);
}

std::string to_line(const CellResult& c) {
  return dump_line({{"task", c.task},
                    {"id", c.id},
                    {"policy", c.policy},
                    {"budget", budget_json(c.budget)},
                    {"protocol", to_string(c.protocol)},
                    {"score", c.score},
                    {"metric", c.metric},
                    {"prediction", c.prediction},
                    {"stop_reason", c.stop_reason},
                    {"kv_resident_bytes", c.kv_resident_bytes},
                    {"kv_budget_bytes", c.kv_budget_bytes},
                    {"metadata_bytes", c.metadata_bytes},
                    {"full_cache_bytes", c.full_cache_bytes},
                    {"over_budget", c.over_budget},
                    {"prompt_tokens", c.prompt_tokens},
                    {"generated_tokens", c.generated_tokens},
                    {"seconds", c.seconds},
                    {"seed", c.seed},
                    {"context", c.context},
                    {"model", c.model}});
}

Result<CellResult> parse_cell(const std::string& line, const std::string& where) {
  const EvalJson object = EvalJson::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return bad_input(
        fmt::format("not a JSON object ({}): it was not written by this program", where));
  }
  CellResult c;
  FieldReader read(object, where);
  read.text("task", c.task);
  read.text("id", c.id);
  read.text("policy", c.policy);
  read.budget("budget", c.budget);
  read.protocol("protocol", c.protocol);
  read.number("score", c.score);
  read.text("metric", c.metric);
  read.text("prediction", c.prediction);
  read.text("stop_reason", c.stop_reason);
  read.integer("kv_resident_bytes", c.kv_resident_bytes);
  read.integer("kv_budget_bytes", c.kv_budget_bytes);
  read.integer("metadata_bytes", c.metadata_bytes);
  read.integer("full_cache_bytes", c.full_cache_bytes);
  read.boolean("over_budget", c.over_budget);
  read.integer("prompt_tokens", c.prompt_tokens);
  read.integer("generated_tokens", c.generated_tokens);
  read.number("seconds", c.seconds);
  read.integer("seed", c.seed);
  read.integer("context", c.context);
  read.text("model", c.model);
  if (Status s = read.status(); !s) return std::unexpected(s.error());
  return c;
}

}  // namespace qevict
