#include "vectors_peers.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>

#include "model/output_norms.h"
#include "policies/observation.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

// A tensor's numbers, or one layer of them.
std::vector<float> tensor(const json& inputs, const char* name, int layer) {
  if (!inputs.contains(name)) return {};
  const Array array = read_array(inputs.at(name));
  const std::vector<float> all = array.floats();
  if (layer < 0) return all;
  const auto n = static_cast<std::ptrdiff_t>(all.size() / array.dim(0));
  return {all.begin() + layer * n, all.begin() + (layer + 1) * n};
}

using Ambiguous = std::vector<std::set<int>>;  // by head

void compare_head(std::size_t h, const std::set<int>& got, const std::set<int>& want,
                  const std::set<int>& allowed, Check& check) {
  std::vector<int> differ;
  std::ranges::set_symmetric_difference(got, want, std::back_inserter(differ));
  for (const int token : differ) {
    if (allowed.contains(token)) continue;
    check.fail("head " + std::to_string(h) + ": token " + std::to_string(token) +
               (got.contains(token) ? " is kept" : " is not kept"));
  }
}

void compare_kept(const json& expected, const Ambiguous& ambiguous, const KeptTokens& kept,
                  bool same_counts, Check& check) {
  check.equal("heads", std::ssize(kept), std::ssize(expected));
  if (kept.size() != expected.size()) return;
  std::int64_t n_expected = 0, n_kept = 0;
  for (std::size_t h = 0; h < kept.size(); ++h) {
    const auto want = expected[h].get<std::set<int>>();
    const std::set<int> got(kept[h].begin(), kept[h].end());
    n_expected += std::ssize(want);
    n_kept += std::ssize(kept[h]);
    const std::string name = "tokens of head " + std::to_string(h);
    if (same_counts) check.equal(name, std::ssize(kept[h]), std::ssize(want));
    compare_head(h, got, want, ambiguous[h], check);
  }
  check.equal("kept tokens", n_kept, n_expected);
}

}  // namespace

PeerPrompt::PeerPrompt(const json& file, int layer) : params_(file.at("params")) {
  const json& inputs = file.at("inputs");
  const int n_kv_heads = params_.at("G");
  view.n_heads = params_.value("H", n_kv_heads);
  view.head_dim = params_.at("D");
  view.layer = std::max(0, layer);
  view.n_layers = params_.value("L", 1);
  view.n_tokens = params_.at("T");
  view.scale = 1.0F / std::sqrt(static_cast<float>(view.head_dim));
  for (const char* name : {"q_window", "q", "q_last"}) {
    if (q_.empty()) q_ = tensor(inputs, name, layer);
  }
  view.q_last = q_.data();
  view.n_last = static_cast<int>(q_.size()) / (view.n_heads * view.head_dim);
  k_ = tensor(inputs, "k", layer);
  v_ = tensor(inputs, "v", layer);
  positions_.resize(static_cast<std::size_t>(view.n_tokens));
  std::iota(positions_.begin(), positions_.end(), 0);
  const std::size_t rows = positions_.size() * view.head_dim;
  for (int g = 0; g < n_kv_heads; ++g) {
    heads_.push_back({positions_, k_.data() + g * rows, v_.empty() ? nullptr : &v_[g * rows]});
  }
  view.heads = heads_;
  const std::vector<float> w_o = tensor(inputs, "w_o", layer);
  if (w_o.empty()) return;
  const int n_out = params_.at("hidden");
  for (int h = 0; h < view.n_heads; ++h) {
    norms_.emplace_back(positions_.size());
    const float* w = w_o.data() + static_cast<std::size_t>(h) * view.head_dim * n_out;
    product_l1_norms(heads_[h / view.group_size()].v, view.n_tokens, w, view.head_dim, n_out,
                     norms_.back().data());
  }
  for (const auto& norms : norms_) norm_spans_.emplace_back(norms);
  view.value_norms = norm_spans_;
}

int PeerPrompt::window() const { return params_.at("window_size"); }

void PeerPrompt::count_mass() {
  Observer observer(view, view.n_last);
  for (int h = 0; h < view.n_heads; ++h) {
    const float* rows = observer.probabilities(h);
    mass_.emplace_back(positions_.size(), 0.0);
    for (int r = 0; r < observer.rows(); ++r) {
      for (std::size_t j = 0; j < positions_.size(); ++j) {
        mass_.back()[j] += rows[r * observer.stride() + j];
      }
    }
  }
  for (const auto& mass : mass_) mass_spans_.emplace_back(mass);
  view.mass = mass_spans_;
}

int peer_n_kept(int n_tokens, double ratio) {
  if (ratio >= 1.0) return 0;
  return std::max(1, static_cast<int>(n_tokens * (1.0 - ratio)));
}

void check_kept(const json& expected, const json& ambiguous, const KeptTokens& kept, Check& check) {
  Ambiguous allowed(kept.size());
  for (std::size_t h = 0; h < std::min(kept.size(), ambiguous.size()); ++h) {
    allowed[h] = ambiguous[h].get<std::set<int>>();
  }
  compare_kept(expected, allowed, kept, true, check);
}

void check_kept_over_heads(const json& expected, const json& ambiguous, const KeptTokens& kept,
                           Check& check) {
  Ambiguous allowed(kept.size());
  for (const json& pair : ambiguous) allowed.at(pair.at(0)).insert(pair.at(1).get<int>());
  compare_kept(expected, allowed, kept, false, check);
}

void check_scores(const json& tensor, const json& tolerance, const std::string& prefix,
                  const HeadScores& scores, Check& check, const json* skipped) {
  const Array expected = read_array(tensor);
  const double rtol = tolerance.at(prefix + "_rtol");
  const double atol = tolerance.at(prefix + "_atol");
  check.equal(prefix + " heads", std::ssize(scores), expected.dim(0));
  if (std::ssize(scores) != expected.dim(0)) return;
  const auto n = static_cast<std::size_t>(expected.dim(1));
  for (std::size_t h = 0; h < scores.size(); ++h) {
    if (scores[h].size() != n) {
      return check.fail(prefix + ": " + std::to_string(scores[h].size()) + " columns, not " +
                        std::to_string(n));
    }
    const auto left_out = skipped == nullptr ? std::set<int>() : (*skipped)[h].get<std::set<int>>();
    for (std::size_t j = 0; j < n; ++j) {
      if (left_out.contains(static_cast<int>(j))) continue;
      const double want = expected.data[h * n + j];
      const std::string name = prefix + "[" + std::to_string(h) + "][" + std::to_string(j) + "]";
      check.close(name, scores[h][j], want, {atol + rtol * std::fabs(want), 0.0});
    }
  }
}

PeerCheck find_peer_check(const std::string& op) {
  static const struct {
    const char* op;
    PeerCheck check;
  } table[] = {
      {"n_kept", check_n_kept},
      {"snapkv", check_snapkv},
      {"tova", check_tova},
      {"knorm", check_knorm},
      {"streaming_llm", check_streaming},
      {"observed_attention", check_observed_attention},
      {"expected_attention", check_expected_attention},
      {"kvzap_linear", check_kvzap},
      {"kvzap_mlp", check_kvzap},
      {"factory_snap", check_factory},
      {"factory_h2o", check_factory},
      {"factory_pyramid", check_factory_pyramid},
      {"factory_stream", check_factory_stream},
      {"pyramidkv_budgets", check_pyramid_budgets},
      {"pyramidkv", check_pyramid},
      {"adakv_snapkv", check_adakv},
      {"adakv_official", check_adakv_official},
      {"efficient_adasnapkv", check_efficient_adakv},
      {"criticalkv", check_critical},
      {"criticaladakv_snapkv", check_critical_adakv},
      {"defensivekv", check_defensive},
      {"layer_defensivekv", check_layer_defensive},
      {"kivi_key", check_kivi_key},
      {"kivi_value", check_kivi_value},
      {"kivi_split", check_kivi_split},
      {"zipcache_prefill", check_zipcache_prefill},
      {"kvquant_key", check_kvquant_key},
      {"kvquant_value", check_kvquant_value},
  };
  for (const auto& entry : table) {
    if (op == entry.op) return entry.check;
  }
  return nullptr;
}

std::string peer_skip_reason(const std::string& op) {
  if (op == "edge_behaviour") {
    return "what a peer does in odd settings, for information; ours is in the policies' tests";
  }
  return {};
}

}  // namespace qevict::vectors
