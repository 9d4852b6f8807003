// What a user may choose about the cache. Defaults are the paper's (method.md section 2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "qevict/result.h"

namespace qevict {

// --kv-budget: a fraction of the full fp16 cache, bytes, or tokens.
struct KvBudget {
  enum class Unit : std::uint8_t { Ratio, Bytes, Tokens };
  Unit unit = Unit::Ratio;
  double value = 0.2;
  // "0.2", "20%", "512MiB", "64MB", "4096tok"; a bare number above 1 is refused (it needs a unit).
  static Result<KvBudget> parse(const std::string& text);
  std::string to_string() const;
};

enum class LocalRule : std::uint8_t { Floor, Ceil };

struct Ranker {
  enum class Kind : std::uint8_t { Mass, Decay, PNorm, KeyL2 };
  Kind kind = Kind::Mass;
  double parameter = 1.0;  // G of decay, P of pnorm
  // "mass", "decay:0.99", "pnorm:2", "key_l2"
  static Result<Ranker> parse(const std::string& text);
  std::string to_string() const;
};

// One of the parameters that only the chosen policy knows (`qevict policies` lists them).
struct PolicyParameter {
  std::string key, value;
};

// Per-sequence cache settings. validate() names the option, its value and its limits. Policies
// other than qevict and full set the fields as they need them, by their own parameters.
struct CacheConfig {
  std::string policy = "qevict";
  std::vector<PolicyParameter> policy_parameters;  // checked where the policy is looked up
  KvBudget budget;
  int n_sink = 5;            // tokens at the start that are never routed
  int n_local = 32;          // newest tokens that are never routed
  double local_share = 0.0;  // if > 0: n_local = floor(local_share * total_tokens)
  int window = 8;            // tokens a window
  double quant_share = 0.7;  // of the history bytes to Quantized (the paper's q)
  int quant_bits = 2;        // 2, 3, 4 or 8
  Ranker ranker;
  LocalRule local_rule = LocalRule::Floor;
  bool promotion = true;
  bool quantized_accessible = true;  // false: ablation, the Quantized tier is not attended to
  bool strict_budget = false;        // reserve the tokens that wait for routing beforehand
  bool fused_attention = true;       // false: separate passes over a dense copy (for comparison)

  Status validate() const;
};

// n_local from "32" (tokens) or "25%" (of the budget in tokens).
Status parse_local(const std::string& text, CacheConfig& config);

}  // namespace qevict
