// One cell of an evaluation: a sample answered with one policy at one budget, as a line of JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "qevict/config.h"
#include "qevict/result.h"

namespace qevict {

using EvalJson = nlohmann::ordered_json;

enum class Protocol {
  WholePrompt,  // the cache is compressed after the whole prompt, the question included
  ContextOnly,  // after the context; the question is appended to the compressed cache
};
const char* to_string(Protocol protocol);  // "whole", "context"
Result<Protocol> parse_protocol(const std::string& text);

// A budget as a JSON value: a number for a fraction, text for bytes and tokens, null for none.
EvalJson budget_json(const std::optional<KvBudget>& budget);
// The same as text: "0.1", "64MiB", "null".
std::string budget_text(const std::optional<KvBudget>& budget);

struct CellResult {
  std::string task, id;
  std::string policy;              // as typed, parameters included
  std::optional<KvBudget> budget;  // none: the policy holds what it holds
  Protocol protocol = Protocol::WholePrompt;
  double score = 0.0;  // 0..1
  std::string metric;
  std::string prediction;
  std::string stop_reason;
  std::int64_t kv_resident_bytes = 0;  // measured, at the end of the answer
  std::int64_t kv_budget_bytes = 0;
  std::int64_t metadata_bytes = 0;
  std::int64_t full_cache_bytes = 0;  // of the same positions in fp16
  bool over_budget = false;           // raised to what the policy needs, or more held than allowed
  int prompt_tokens = 0, generated_tokens = 0;
  double seconds = 0.0;  // this cell's share of what was computed for several together
  std::uint64_t seed = 0;
  int context = 0;
  std::string model;

  // Names the cell among those of a run.
  std::string key() const;
};

// One line, without the newline at its end.
std::string to_line(const CellResult& cell);
// `where` ("results.jsonl, line 3") goes into the error, with the field.
Result<CellResult> parse_cell(const std::string& line, const std::string& where);

// One line; bytes that are no UTF-8 become U+FFFD.
std::string dump_line(const EvalJson& json);

}  // namespace qevict
