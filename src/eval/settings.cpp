#include "eval/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/result_file.h"

namespace qevict {
namespace {

constexpr const char* kNotCompared = "written_by";

std::optional<KvBudget> parse_budget(const EvalJson& json) {
  if (json.is_null()) return std::nullopt;
  const Result<KvBudget> budget =
      KvBudget::parse(json.is_string() ? json.get<std::string>() : json.dump());
  return budget ? std::optional<KvBudget>(*budget) : std::nullopt;
}

// Throws nlohmann's exceptions where a field is missing or of another kind.
RunSettings from_json(const EvalJson& json) {
  RunSettings s;
  s.model = json.at("model").get<std::string>();
  s.model_bytes = json.at("model_bytes").get<std::int64_t>();
  for (const EvalJson& task : json.at("tasks")) {
    s.tasks.push_back({task.at("name").get<std::string>(), task.at("samples").get<int>(),
                       task.at("digest").get<std::string>()});
  }
  for (const EvalJson& policy : json.at("policies")) {
    s.policies.push_back(
        {policy.at("policy").get<std::string>(), parse_budget(policy.at("budget"))});
  }
  for (const auto& [key, value] : json.at("cache_options").items()) {
    s.cache_options.emplace_back(key, value.get<std::string>());
  }
  const Result<Protocol> protocol = parse_protocol(json.at("protocol").get<std::string>());
  if (protocol) s.protocol = *protocol;
  s.context = json.at("context").get<int>();
  s.samples = json.at("samples").get<int>();
  s.seed = json.at("seed").get<std::uint64_t>();
  s.chat_template = json.at("chat_template").get<bool>();
  s.diagnostics = json.at("diagnostics").get<bool>();
  s.version = json.at(kNotCompared).at("version").get<std::string>();
  s.isa = json.at(kNotCompared).at("isa").get<std::string>();
  return s;
}

// For a message: long lists are cut.
std::string shown(const EvalJson& value) {
  constexpr std::size_t kLongest = 160;
  std::string text = dump_line(value);
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

// The entries of a list that `other` lacks.
EvalJson only_here(const EvalJson& list, const EvalJson& other) {
  EvalJson only = EvalJson::array();
  for (const EvalJson& entry : list) {
    if (std::ranges::find(other, entry) == other.end()) only.push_back(entry);
  }
  return only;
}

// Of two lists what they do not share: the rest may be long.
std::string difference(const EvalJson& now, const EvalJson& was) {
  if (!now.is_array()) return fmt::format("{}, was {}", shown(now), shown(was));
  const EvalJson added = only_here(now, was), missing = only_here(was, now);
  if (added.empty() && missing.empty()) return "in another order";
  if (missing.empty()) return "also " + shown(added);
  if (added.empty()) return "without " + shown(missing);
  return fmt::format("{}, was {}", shown(added), shown(missing));
}

}  // namespace

EvalJson to_json(const RunSettings& s) {
  EvalJson tasks = EvalJson::array();
  for (const auto& t : s.tasks) {
    tasks.push_back({{"name", t.name}, {"samples", t.samples}, {"digest", t.digest}});
  }
  EvalJson policies = EvalJson::array();
  for (const auto& p : s.policies) {
    policies.push_back({{"policy", p.policy}, {"budget", budget_json(p.budget)}});
  }
  EvalJson options = EvalJson::object();
  for (const auto& [key, value] : s.cache_options) options[key] = value;
  return {{"model", s.model},
          {"model_bytes", s.model_bytes},
          {"tasks", std::move(tasks)},
          {"policies", std::move(policies)},
          {"cache_options", std::move(options)},
          {"protocol", to_string(s.protocol)},
          {"context", s.context},
          {"samples", s.samples},
          {"seed", s.seed},
          {"chat_template", s.chat_template},
          {"diagnostics", s.diagnostics},
          {kNotCompared, {{"version", s.version}, {"isa", s.isa}}}};
}

Result<RunSettings> read_settings(const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text) return std::unexpected(text.error());
  const EvalJson json = EvalJson::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return bad_input(
        fmt::format("not a JSON object ({}): it was not written by this program", path));
  }
  try {
    return from_json(json);
  } catch (const EvalJson::exception& error) {
    std::string what = error.what();
    if (const std::size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    return bad_input(fmt::format("{} ({}): it was not written by this program", what, path));
  }
}

std::string differences(const RunSettings& now, const RunSettings& was) {
  const EvalJson a = to_json(now);
  const EvalJson b = to_json(was);
  std::string text;
  for (const auto& [key, value] : a.items()) {
    if (key == kNotCompared || value == b.at(key)) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", key, difference(value, b.at(key)));
  }
  return text;
}

std::int64_t planned_cells(const RunSettings& settings) {
  std::int64_t samples = 0;
  for (const auto& task : settings.tasks) samples += task.samples;
  return samples * static_cast<std::int64_t>(settings.policies.size());
}

}  // namespace qevict
