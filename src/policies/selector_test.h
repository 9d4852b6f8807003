// Random prompts as selectors see them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "policies/registry.h"

namespace qevict {

struct PromptShape {
  int n_heads = 4, n_kv_heads = 2, head_dim = 16;
  int n_tokens = 100;
  int n_last = 64;  // queries at hand
  unsigned seed = 1;
};

class PromptScene {
 public:
  // holds(head, position): whether a KV head still has the token (always, if empty).
  explicit PromptScene(const PromptShape& shape,
                       const std::function<bool(int, TokenPos)>& holds = {})
      : random_(shape.seed), d_(shape.head_dim) {
    rope_ = RopeSpec::plain(RopePairing::Neox, d_, 10000.0);
    heads_.resize(shape.n_kv_heads);
    for (int g = 0; g < shape.n_kv_heads; ++g) {
      for (TokenPos p = 0; p < shape.n_tokens; ++p) {
        const std::vector<float> k = draw(d_), v = draw(d_);
        if (holds && !holds(g, p)) continue;
        Head& head = heads_[g];
        head.positions.push_back(p);
        head.k.insert(head.k.end(), k.begin(), k.end());
        head.v.insert(head.v.end(), v.begin(), v.end());
      }
    }
    q = draw(shape.n_heads * shape.n_last * d_);
    for (const Head& head : heads_) {
      spans_.push_back({head.positions, head.k.data(), head.v.data()});
    }
    const int group = shape.n_heads / shape.n_kv_heads;
    for (int h = 0; h < shape.n_heads; ++h) {
      norms_.push_back(draw(static_cast<int>(heads_[h / group].positions.size())));
      for (float& norm : norms_.back()) norm = std::fabs(norm) + 0.1F;
    }
    for (const auto& norms : norms_) norm_spans_.emplace_back(norms);
    for (const auto& norms : norms_) {
      const std::vector<float> sums = draw(static_cast<int>(norms.size()));
      auto& mass = masses_.emplace_back(sums.begin(), sums.end());
      for (double& sum : mass) sum = std::fabs(sum);
    }
    for (const auto& mass : masses_) mass_spans_.emplace_back(mass);
    mean_.assign(shape.n_heads * d_, 0.25);
    covariance_.assign(static_cast<std::size_t>(shape.n_heads) * d_ * d_, 0.0);
    for (std::size_t i = 0; i < covariance_.size(); ++i) {
      covariance_[i] = i / d_ % d_ == i % d_ ? 0.5 : 0.01;
    }
    view = {.layer = 0,
            .n_layers = 1,
            .n_heads = shape.n_heads,
            .head_dim = d_,
            .scale = 1.0F / std::sqrt(static_cast<float>(d_)),
            .n_tokens = shape.n_tokens,
            .rope = &rope_,
            .heads = spans_,
            .q_last = q.data(),
            .n_last = shape.n_last,
            .queries = {mean_.data(), covariance_.data(), shape.n_tokens},
            .value_norms = norm_spans_,
            .mass = mass_spans_};
  }
  PromptScene(const PromptScene&) = delete;

  PromptView view;
  std::vector<float> q;  // may be changed
  float* k(int head) { return heads_[head].k.data(); }
  float* v(int head) { return heads_[head].v.data(); }
  std::vector<float>& norms(int q_head) { return norms_[q_head]; }
  std::vector<double>& mass(int q_head) { return masses_[q_head]; }

 private:
  struct Head {
    std::vector<TokenPos> positions;
    std::vector<float> k, v;
  };
  std::vector<float> draw(int n) {
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<std::size_t>(n));
    std::ranges::generate(x, [&] { return normal(random_); });
    return x;
  }

  std::mt19937 random_;
  int d_;
  RopeSpec rope_;
  std::vector<Head> heads_;
  std::vector<PromptHead> spans_;
  std::vector<std::vector<float>> norms_;
  std::vector<std::span<const float>> norm_spans_;
  std::vector<std::vector<double>> masses_;
  std::vector<std::span<const double>> mass_spans_;
  std::vector<double> mean_, covariance_;
};

inline std::unique_ptr<Selector> make_selector(const std::string& policy,
                                               std::vector<PolicyParameter> parameters = {}) {
  CacheConfig config;
  config.policy = policy;
  config.policy_parameters = std::move(parameters);
  return require_policy(config).value()->make_selector(config);
}

inline KeptTokens select(const Selector& selector, const PromptView& view, int n_kept) {
  KeptTokens kept(view.heads.size());
  selector.select(view, n_kept, kept);
  return kept;
}

}  // namespace qevict
