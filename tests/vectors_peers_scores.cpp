// Peers that score tokens and keep the best of each head.
#include <algorithm>
#include <limits>
#include <numeric>

#include "policies/kvzap.h"
#include "policies/one_shot.h"
#include "policies/registry.h"
#include "policies/selection.h"
#include "vectors_peers.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

void set_case(const json& c, Check& check) {
  std::string context = "case";
  for (const char* key : {"T", "L", "window_size", "compression_ratio", "n_sink",
                          "max_capacity_prompt", "pooling", "gqa_score_agg"}) {
    if (c.contains(key)) context += " " + std::string(key) + "=" + c.at(key).dump();
  }
  check.set_context(context);
}

// Every case keeps the best n_kept of each head.
void check_best(const json& file, const PeerPrompt& prompt, const HeadScores& scores,
                Check& check) {
  check_scores(file.at("expected").at("scores"), file.at("tolerance"), "scores", scores, check);
  for (const json& c : file.at("expected").at("cases")) {
    set_case(c, check);
    const int n_kept = peer_n_kept(prompt.n_tokens(), c.at("compression_ratio"));
    check.equal("n_kept", n_kept, c.at("n_kept"));
    KeptTokens kept(scores.size());
    select_per_head(scores, n_kept, kept);
    check_kept(c.at("kept"), c.at("ambiguous"), kept, check);
  }
}

Observation factory_observation(const json& file, const json& c) {
  Observation what;
  what.obs_window = file.at("params").at("window_size");
  what.kernel = file.at("params").at("kernel_size");
  what.sum_queries = true;
  what.pooling = c.at("pooling") == "maxpool" ? Pooling::Max : Pooling::Average;
  const std::string group = c.at("gqa_score_agg");
  what.group = group == "max"   ? GroupReduction::Max
               : group == "sum" ? GroupReduction::Sum
                                : GroupReduction::Mean;
  return what;
}

// The best of the past and the whole window; everything when the prompt is shorter than n_kept.
KeptTokens keep_with_window(const PeerPrompt& prompt, HeadScores scores, int n_kept) {
  KeptTokens kept(scores.size());
  append_window(prompt.view, std::numeric_limits<float>::max(), scores);
  select_per_head(scores, n_kept, kept);
  return kept;
}

KeptTokens all_tokens(const PeerPrompt& prompt) {
  std::vector<int> all(static_cast<std::size_t>(prompt.n_tokens()));
  std::iota(all.begin(), all.end(), 0);
  return KeptTokens(prompt.view.heads.size(), all);
}

std::vector<int> streaming_kept(int n_tokens, int n_sink, int n_kept) {
  std::vector<float> scores;
  for (int i = 0; i < n_tokens; ++i) scores.push_back(streaming_score(i, n_sink));
  return best(scores, n_kept);
}

}  // namespace

void check_n_kept(const json& file, Check& check) {
  for (const json& c : file.at("expected").at("cases")) {
    set_case(c, check);
    check.equal("n_kept", peer_n_kept(c.at("T"), c.at("compression_ratio")), c.at("n_kept"));
  }
}

void check_snapkv(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  const int kernel = file.at("params").at("kernel_size");
  check_best(file, prompt, snapkv_scores(prompt.view, prompt.window(), kernel), check);
  CacheConfig config;
  config.policy = "snapkv";
  config.policy_parameters = {{"obs_window", std::to_string(prompt.window())},
                              {"kernel", std::to_string(kernel)}};
  const auto selector = require_policy(config).value()->make_selector(config);
  for (const json& c : file.at("expected").at("cases")) {
    set_case(c, check);
    KeptTokens kept(prompt.view.heads.size());
    selector->select(prompt.view, c.at("n_kept"), kept);
    check_kept(c.at("kept"), c.at("ambiguous"), kept, check);
  }
}

void check_tova(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  check_best(file, prompt, tova_scores(prompt.view), check);
}

void check_knorm(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  check_best(file, prompt, knorm_scores(prompt.view), check);
}

void check_streaming(const json& file, Check& check) {
  for (const json& c : file.at("expected").at("cases")) {
    set_case(c, check);
    if (c.contains("error")) continue;  // the peer refuses prompts of sinks alone
    const int n_kept = peer_n_kept(c.at("T"), c.at("compression_ratio"));
    check.equal("n_kept", n_kept, c.at("n_kept"));
    const KeptTokens kept = {streaming_kept(c.at("T"), c.at("n_sink"), n_kept)};
    check_kept(json::array({c.at("kept")}), json::array({c.at("ambiguous")}), kept, check);
  }
}

void check_observed_attention(const json& file, Check& check) {
  PeerPrompt prompt(file);
  prompt.count_mass();
  const json& e = file.at("expected");
  if (e.contains("attention")) {
    Observer observer(prompt.view, prompt.view.n_last);
    const Array expected = read_array(e.at("attention"));
    const auto n = static_cast<std::size_t>(prompt.n_tokens());
    const double rtol = file.at("tolerance").at("attention_rtol");
    const double atol = file.at("tolerance").at("attention_atol");
    for (std::size_t i = 0; i < expected.data.size(); ++i) {
      if (i % n == 0) check.set_context("attention row " + std::to_string(i / n));
      const std::size_t row = i / n % n;
      if (i % (n * n) == 0) observer.probabilities(static_cast<int>(i / (n * n)));
      const float got = observer.row(static_cast<int>(row))[i % n];
      check.close("column " + std::to_string(i % n), got, expected.data[i],
                  {atol + rtol * expected.data[i], 0.0});
    }
    check.set_context("");
  }
  check_best(file, prompt, observed_attention_scores(prompt.view), check);
}

void check_expected_attention(const json& file, Check& check) {
  PeerPrompt prompt(file);
  const json& p = file.at("params");
  const Array q = read_array(file.at("inputs").at("q_pre_rope"));
  const auto d = static_cast<std::size_t>(prompt.view.head_dim);
  const auto n = static_cast<std::size_t>(prompt.n_tokens());
  const std::size_t first = p.at("n_sink");
  const auto n_heads = static_cast<std::size_t>(prompt.view.n_heads);
  std::vector<double> mean(n_heads * d, 0.0), covariance(n_heads * d * d, 0.0);
  const double count = static_cast<double>(n - first);
  for (std::size_t h = 0; h < n_heads; ++h) {
    const auto at = [&](std::size_t t, std::size_t c) { return q.data[(h * n + t) * d + c]; };
    for (std::size_t c = 0; c < d; ++c) {
      for (std::size_t t = first; t < n; ++t) mean[h * d + c] += at(t, c) / count;
    }
    for (std::size_t a = 0; a < d; ++a) {
      for (std::size_t b = 0; b < d; ++b) {
        for (std::size_t t = first; t < n; ++t) {
          covariance[(h * d + a) * d + b] +=
              (at(t, a) - mean[h * d + a]) * (at(t, b) - mean[h * d + b]) / count;
        }
      }
    }
  }
  RopeSpec rope{RopePairing::Neox, static_cast<int>(d), {}};
  rope.inv_freq = read_array(file.at("inputs").at("inv_freq")).data;
  prompt.view.rope = &rope;
  prompt.view.queries = {mean.data(), covariance.data(), static_cast<std::int64_t>(n - first)};

  const ExpectedQueries queries =
      expected_queries(prompt.view, p.at("n_future_positions"), p.at("use_covariance"));
  const json& e = file.at("expected");
  const auto rows = [](const std::vector<float>& x, std::size_t width) {
    HeadScores split;
    for (std::size_t i = 0; i < x.size(); i += width) split.emplace_back(&x[i], &x[i] + width);
    return split;
  };
  check_scores(e.at("mean_query_rotated"), file.at("tolerance"), "stats", rows(queries.mean, d),
               check);
  if (e.contains("cov_query_rotated")) {
    json flat = e.at("cov_query_rotated");
    flat["shape"] = {n_heads, d * d};
    check_scores(flat, file.at("tolerance"), "stats", rows(queries.covariance, d * d), check);
  }
  check_best(
      file, prompt,
      expected_attention_scores(
          prompt.view, queries,
          {.n_sink = p.at("n_sink"), .use_vnorm = p.at("use_vnorm"), .epsilon = p.at("epsilon")}),
      check);
}

void check_kvzap(const json& file, Check& check) {
  const json& p = file.at("params");
  const json& inputs = file.at("inputs");
  const auto floats = [&](const char* name) {
    return inputs.contains(name) ? read_array(inputs.at(name)).floats() : std::vector<float>();
  };
  const auto states = floats("hidden_states"), w1 = floats("w1"), b1 = floats("b1"),
             w2 = floats("w2"), b2 = floats("b2");
  KvZapWeights weights{p.at("hidden"), 0, p.at("G"), w1, b1, w2, b2};
  if (!p.at("mlp_hidden").is_null()) weights.mlp_hidden = p.at("mlp_hidden");
  check_scores(file.at("expected").at("scores"), file.at("tolerance"), "scores",
               kvzap_scores(weights, states), check);
}

void check_factory(const json& file, Check& check) {
  PeerPrompt prompt(file);
  const bool h2o = file.at("op") == "factory_h2o";
  if (h2o) prompt.count_mass();
  for (const json& c : file.at("expected").at("cases")) {
    set_case(c, check);
    const int n_kept = c.at("max_capacity_prompt");
    const Observation what = factory_observation(file, c);
    const HeadScores scores = h2o ? factory_h2o_scores(prompt.view, what.obs_window, what.group)
                                  : observe(prompt.view, what);
    if (c.contains("scores")) {
      check_scores(c.at("scores"), file.at("tolerance"), "scores", scores, check);
    }
    const KeptTokens kept =
        prompt.n_tokens() < n_kept ? all_tokens(prompt) : keep_with_window(prompt, scores, n_kept);
    check_kept(c.at("kept"), c.value("ambiguous", json::array()), kept, check);
  }
}

void check_factory_pyramid(const json& file, Check& check) {
  const PeerPrompt prompt(file);
  const int w = prompt.window();
  for (const json& c : file.at("expected").at("cases")) {
    const HeadScores scores = observe(prompt.view, factory_observation(file, c));
    for (const json& layer : c.at("layers")) {
      set_case(c, check);
      if (layer.contains("scores")) {
        check_scores(layer.at("scores"), file.at("tolerance"), "scores", scores, check);
      }
      const int budget = factory_pyramid_budget(c.at("max_capacity_prompt"), prompt.n_tokens(),
                                                layer.at("layer"), c.at("L"), w, c.at("beta"));
      check.equal("n_kept", budget, layer.at("n_kept"));
      check_kept(layer.at("kept"), layer.at("ambiguous"), keep_with_window(prompt, scores, budget),
                 check);
    }
  }
}

void check_factory_stream(const json& file, Check& check) {
  const json& p = file.at("params");
  const int n_tokens = p.at("T");
  for (const json& c : file.at("expected").at("cases")) {
    set_case(c, check);
    const int n_kept = c.at("max_capacity_prompt");
    const KeptTokens kept = {
        streaming_kept(n_tokens, n_kept - p.at("window_size").get<int>(), n_kept)};
    check_kept(json::array({c.at("kept")}), json::array({json::array()}), kept, check);
  }
}

}  // namespace qevict::vectors
