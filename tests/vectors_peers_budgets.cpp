// Peers that split a budget over layers or heads.
#include <cmath>
#include <limits>

#include "policies/one_shot.h"
#include "policies/registry.h"
#include "policies/selection.h"
#include "vectors_peers.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

std::unique_ptr<Selector> selector_of(const std::string& policy,
                                      std::vector<PolicyParameter> parameters) {
  CacheConfig config;
  config.policy = policy;
  config.policy_parameters = std::move(parameters);
  const auto spec = require_policy(config);
  if (!spec) throw std::runtime_error(spec.error().message);
  return (*spec)->make_selector(config);
}

std::string text(const json& number) { return number.dump(); }

void set_case(const json& c, Check& check) {
  std::string context = "case";
  for (const char* key : {"compression_ratio", "base_capacity", "alpha_safeguard", "floor_alpha",
                          "first_stage_ratio", "normalize", "pooling", "gqa_func"}) {
    if (c.contains(key)) context += " " + std::string(key) + "=" + c.at(key).dump();
  }
  check.set_context(context);
}

void check_counts(const json& expected, const KeptTokens& kept, const json& ambiguous,
                  Check& check) {
  if (!ambiguous.empty()) return;
  std::vector<std::int64_t> counts;
  for (const std::vector<int>& head : kept) counts.push_back(std::ssize(head));
  check.equal_all("head_counts", counts, expected.get<std::vector<std::int64_t>>());
}

std::int64_t whole(double x) { return static_cast<std::int64_t>(x); }

void check_stage1(const json& c, const std::vector<int>& counts, Check& check) {
  const auto expected = c.at("stage1_count").get<std::vector<std::int64_t>>();
  for (std::size_t g = 0; g < counts.size(); ++g) {
    // On an edge rounding may move the count by one.
    const auto edge = static_cast<std::int64_t>(c.at("stage1_edge")[g].size());
    if (std::abs(counts[g] - expected[g]) > edge) {
      check.equal("stage1_count[" + std::to_string(g) + "]", counts[g], expected[g]);
    }
  }
}

}  // namespace

void check_pyramid_budgets(const json& file, Check& check) {
  for (const json& c : file.at("expected").at("cases")) {
    const int n_layers = c.at("L");
    const int n = c.at("T");
    check.set_context("case L=" + c.at("L").dump() + " T=" + c.at("T").dump() +
                      " compression_ratio=" + c.at("compression_ratio").dump() +
                      " window_size=" + c.at("window_size").dump());
    const double kept = n * (1.0 - c.at("compression_ratio").get<double>());
    std::vector<int> budgets;
    for (int i = 0; i < n_layers; ++i) {
      budgets.push_back(pyramid_budget(kept, n, i, n_layers, c.at("window_size"), c.at("beta")));
    }
    check.equal_all("budgets", budgets, c.at("budgets").get<std::vector<std::int64_t>>());
  }
}

void check_pyramid(const json& file, Check& check) {
  const json& p = file.at("params");
  const int n_layers = p.at("L");
  for (int i = 0; i < n_layers; ++i) {
    const PeerPrompt prompt(file, i);
    const HeadScores scores = snapkv_scores(prompt.view, prompt.window(), p.at("kernel_size"));
    json expected = file.at("expected").at("scores");
    const auto n = static_cast<std::ptrdiff_t>(expected.at("data").size() / n_layers);
    const auto begin = expected.at("data").begin() + i * n;
    expected["shape"] = {p.at("G"), p.at("T")};
    expected["data"] = json(std::vector<json>(begin, begin + n));
    check.set_context("layer " + std::to_string(i));
    check_scores(expected, file.at("tolerance"), "scores", scores, check);
    for (const json& c : file.at("expected").at("cases")) {
      const json& layer = c.at("layers").at(i);
      const double kept_tokens =
          prompt.n_tokens() * (1.0 - c.at("compression_ratio").get<double>());
      const int budget = pyramid_budget(kept_tokens, prompt.n_tokens(), i, n_layers,
                                        prompt.window(), p.at("beta"));
      check.equal("n_kept", budget, layer.at("n_kept"));
      KeptTokens kept(scores.size());
      select_per_head(scores, budget, kept);
      check_kept(layer.at("kept"), layer.at("ambiguous"), kept, check);
    }
  }
}

void check_adakv(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  const json& p = file.at("params");
  const HeadScores scores = snapkv_scores(prompt.view, prompt.window(), p.at("kernel_size"));
  check_scores(file.at("expected").at("scores"), file.at("tolerance"), "scores", scores, check);
  for (const json& c : file.at("expected").at("cases")) {
    set_case(c, check);
    const auto selector = selector_of("adakv", {{"obs_window", text(p.at("window_size"))},
                                                {"kernel", text(p.at("kernel_size"))},
                                                {"alpha", text(c.at("alpha_safeguard"))}});
    KeptTokens kept(scores.size());
    selector->select(prompt.view, c.at("n_kept"), kept);
    check_kept_over_heads(c.at("kept"), c.at("ambiguous"), kept, check);
    check_counts(c.at("head_counts"), kept, c.at("ambiguous"), check);
  }
}

void check_adakv_official(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  const json& p = file.at("params");
  for (const json& c : file.at("expected").at("cases")) {
    set_case(c, check);
    Observation what{p.at("window_size"), p.at("kernel_size")};
    what.pooling = c.at("pooling") == "maxpool" ? Pooling::Max : Pooling::Average;
    what.group = c.at("gqa_func") == "max" ? GroupReduction::Max : GroupReduction::Mean;
    check_scores(c.at("scores"), file.at("tolerance"), "scores", observe(prompt.view, what), check);
    const auto selector =
        selector_of("adakv", {{"flavour", "official"},
                              {"obs_window", text(p.at("window_size"))},
                              {"kernel", text(p.at("kernel_size"))},
                              {"alpha", text(c.at("floor_alpha"))},
                              {"normalize", text(c.at("normalize"))},
                              {"pooling", c.at("pooling") == "maxpool" ? "max" : "avg"},
                              {"group", c.at("gqa_func")}});
    KeptTokens kept(prompt.view.heads.size());
    selector->select(prompt.view, c.at("base_capacity"), kept);
    check_counts(c.at("head_lens"), kept, json::array(), check);
    check_kept(c.at("kept"), c.at("ambiguous"), kept, check);
  }
}

void check_efficient_adakv(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  const json& p = file.at("params");
  const HeadScores observed =
      observe(prompt.view, {.obs_window = prompt.window(), .kernel = p.at("kernel_size")});
  for (const json& c : file.at("expected").at("cases")) {
    set_case(c, check);
    const double kept_tokens = prompt.n_tokens() * (1.0 - c.at("compression_ratio").get<double>());
    HeadScores scores = observed;
    pin_floor(prompt.view, static_cast<int>(kept_tokens * p.at("floor_alpha").get<double>()),
              scores);
    check_scores(c.at("scores"), file.at("tolerance"), "scores", scores, check);
    KeptTokens kept(scores.size());
    const std::int64_t total = whole(kept_tokens * static_cast<double>(scores.size()));
    check.equal("total_kept", total, c.at("total_kept"));
    select_over_heads(scores, total, kept);
    check_kept_over_heads(c.at("kept"), c.at("ambiguous"), kept, check);
    check_counts(c.at("head_counts"), kept, c.at("ambiguous"), check);
  }
}

void check_critical(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  const json& p = file.at("params");
  const json& e = file.at("expected");
  const HeadScores base = snapkv_scores(prompt.view, prompt.window(), p.at("kernel_size"));
  const HeadScores weights = value_weights(prompt.view);
  check_scores(e.at("base_scores"), file.at("tolerance"), "scores", base, check);
  check_scores(e.at("wov_l1"), file.at("tolerance"), "wov", weights, check);
  for (const json& c : e.at("cases")) {
    set_case(c, check);
    const int n_kept = c.at("n_kept");
    KeptTokens first(base.size()), kept(base.size());
    select_per_head(base, c.at("n_first"), first);
    check_kept(c.at("stage1"), c.at("stage1_ambiguous"), first, check);
    for (std::size_t g = 0; g < base.size(); ++g) {
      kept[g] = critical_best(base[g], weights[g], n_kept, c.at("n_first"), p.at("epsilon"));
    }
    check_kept(c.at("kept"), c.at("ambiguous"), kept, check);
    if (n_kept < prompt.window()) continue;  // the policy keeps the newest then
    const auto selector =
        selector_of("criticalkv", {{"obs_window", text(p.at("window_size"))},
                                   {"kernel", text(p.at("kernel_size"))},
                                   {"first_share", text(c.at("first_stage_ratio"))},
                                   {"epsilon", text(p.at("epsilon"))}});
    KeptTokens selected(base.size());
    selector->select(prompt.view, n_kept, selected);
    check_kept(c.at("kept"), c.at("ambiguous"), selected, check);
  }
}

void check_critical_adakv(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  const json& p = file.at("params");
  const json& e = file.at("expected");
  const HeadScores base = snapkv_scores(prompt.view, prompt.window(), p.at("kernel_size"));
  check_scores(e.at("base_scores"), file.at("tolerance"), "scores", base, check);
  check_scores(e.at("wov_l1"), file.at("tolerance"), "wov", value_weights(prompt.view), check);
  for (const json& c : e.at("cases")) {
    set_case(c, check);
    const auto selector =
        selector_of("criticaladakv", {{"obs_window", text(p.at("window_size"))},
                                      {"kernel", text(p.at("kernel_size"))},
                                      {"alpha", text(c.at("alpha_safeguard"))},
                                      {"first_share", text(p.at("first_stage_ratio"))},
                                      {"epsilon", text(p.at("epsilon"))}});
    KeptTokens kept(base.size());
    selector->select(prompt.view, c.at("n_kept"), kept);
    check_kept(c.at("kept"), c.at("ambiguous"), kept, check);
    const bool edge = c.at("budgets_ambiguous");
    if (!edge) check_counts(c.at("head_counts"), kept, c.at("ambiguous"), check);
  }
}

void check_defensive(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  const json& e = file.at("expected");
  const json& tolerance = file.at("tolerance");
  const int w = prompt.window();
  const DefensiveParts parts = defensive_parts(prompt.view, w, file.at("params").at("kernel_size"));
  check.close("window_bias", parts.window_bias, e.at("window_bias"),
              {tolerance.at("window_bias_atol"), 0.0});
  check_scores(e.at("ave_attention"), tolerance, "scores", parts.average, check);
  check_scores(e.at("defensive_scores"), tolerance, "scores", parts.defensive, check);
  for (const json& c : e.at("cases")) {
    set_case(c, check);
    const double n_kept = prompt.n_tokens() * (1.0 - c.at("compression_ratio").get<double>());
    std::vector<int> counts;
    const HeadScores scores = defensive_scores(prompt.view, parts, w, n_kept, &counts);
    check_stage1(c, counts, check);
    check_scores(c.at("scores"), tolerance, "scores", scores, check, &c.at("stage1_edge"));
    KeptTokens kept(scores.size());
    const std::int64_t total = whole(n_kept * static_cast<double>(scores.size()));
    check.equal("total_kept", total, c.at("total_kept"));
    select_over_heads(scores, total, kept);
    check_kept_over_heads(c.at("kept"), c.at("ambiguous"), kept, check);
    check_counts(c.at("head_counts"), kept, c.at("ambiguous"), check);
  }
}

void check_layer_defensive(const json& file, Check& check) {
  const json& p = file.at("params");
  const json& e = file.at("expected");
  const int n_layers = p.at("L");
  for (const json& c : e.at("cases")) {
    const double ratio = c.at("compression_ratio");
    const double n_kept = p.at("T").get<int>() * (1.0 - ratio);
    std::vector<HeadScores> layers;
    for (int i = 0; i < n_layers; ++i) {
      const PeerPrompt prompt(file, i);
      const json& layer = c.at("layers").at(i);
      check.set_context("compression_ratio=" + c.at("compression_ratio").dump() + " layer " +
                        std::to_string(i));
      const DefensiveParts parts =
          defensive_parts(prompt.view, prompt.window(), p.at("kernel_size"));
      check.close("window_bias", parts.window_bias, e.at("window_bias").at(i),
                  {file.at("tolerance").at("window_bias_atol"), 0.0});
      std::vector<int> counts;
      layers.push_back(defensive_scores(prompt.view, parts, prompt.window(), n_kept, &counts));
      check_stage1(layer, counts, check);
      check_scores(layer.at("scores"), file.at("tolerance"), "scores", layers.back(), check,
                   &layer.at("stage1_edge"));
    }
    const std::int64_t total = whole(n_kept * p.at("G").get<int>() * n_layers);
    check.equal("total_kept", total, c.at("total_kept"));
    const std::vector<std::int64_t> shares = layer_shares(layers, total);
    const bool edge = !c.at("global_ambiguous").empty();
    for (int i = 0; i < n_layers; ++i) {
      const json& layer = c.at("layers").at(i);
      if (edge) continue;
      check.equal("layer_kept", shares[i], layer.at("layer_kept"));
      KeptTokens kept(layers[i].size());
      select_over_heads(layers[i], shares[i], kept);
      check_kept_over_heads(layer.at("kept"), layer.at("ambiguous"), kept, check);
      check_counts(layer.at("head_counts"), kept, layer.at("ambiguous"), check);
    }
  }
}

}  // namespace qevict::vectors
