// A one- or two-layer "model" whose projections are random numbers, for the tests of attention, and
// a plain double-precision attention over whatever its cache makes accessible.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "attention/tiered_attention.h"
#include "kernels/codec.h"
#include "policies/registry.h"

namespace qevict {

struct AttentionToken {
  std::vector<double> k, v;  // [D], post-RoPE, as the cache holds them
  bool sink = false;
};

class AttentionDriver {
 public:
  AttentionDriver(Geometry g, CacheConfig config, int n_threads, unsigned seed, int n_layers = 2,
                  bool per_head = false)
      : AttentionDriver(g, config, by_head(*find_policy(config.policy), per_head), n_threads, seed,
                        n_layers) {}

  AttentionDriver(Geometry g, const CacheConfig& config, PolicySpec policy, int n_threads,
                  unsigned seed, int n_layers)
      : g_(g), n_threads_(n_threads), random_(seed), policy_(std::move(policy)) {
    auto cache = KvCache::create(g, n_layers, RopeSpec::plain(g.pairing, g.head_dim, 10000.0),
                                 config, policy_);
    EXPECT_TRUE(cache.has_value()) << (cache ? "" : cache.error().message);
    cache_ = std::move(*cache);
    attention_ = std::make_unique<TieredAttention>(*cache_, active_kernels(), n_threads);
  }

  KvCache& cache() { return *cache_; }
  TieredAttention& attention() { return *attention_; }

  // Feeds n random tokens; returns the outputs of all layers [layer][n][n_heads*D].
  std::vector<std::vector<float>> prompt(int n, int max_new, int block, bool check) {
    EXPECT_TRUE(cache_->begin_prompt(n, max_new).has_value());
    attention_->begin_prompt(n, block);
    std::vector<std::vector<float>> outs;
    for (int layer = 0; layer < cache_->n_layers(); ++layer) {
      attention_->begin_layer(layer);
      const std::vector<std::vector<AttentionToken>> before = accessible(layer);
      Block all = random_block(n);
      std::vector<float> out(static_cast<std::size_t>(n) * width());
      for (int first = 0; first < n; first += block) {
        const int count = std::min(block, n - first);
        attention_->set_block(first, count);
        run(layer, slice(all, first, count),
            out.data() + static_cast<std::size_t>(first) * width());
      }
      if (check) check_prompt(before, all, n, out);
      EXPECT_TRUE(attention_->finish_layer(layer).has_value());
      outs.push_back(out);
    }
    cache_->commit_prompt();
    attention_->end_prompt();
    return outs;
  }

  // A prompt that is taken back after its first layer; the tokens that follow are not changed by
  // it.
  void cancelled_prompt(int n, int max_new) {
    const std::mt19937 random = random_;
    const std::normal_distribution<float> normal = normal_;
    EXPECT_TRUE(cache_->begin_prompt(n, max_new).has_value());
    attention_->begin_prompt(n, n);
    attention_->begin_layer(0);
    attention_->set_block(0, n);
    std::vector<float> out(static_cast<std::size_t>(n) * width());
    run(0, random_block(n), out.data());
    EXPECT_TRUE(attention_->finish_layer(0).has_value());
    attention_->end_prompt();
    cache_->rollback_prompt();
    random_ = random;
    normal_ = normal;
  }

  std::vector<std::vector<float>> step(bool check) {
    const int position = cache_->n_tokens();
    attention_->begin_step();
    cache_->begin_step();
    std::vector<std::vector<float>> outs;
    for (int layer = 0; layer < cache_->n_layers(); ++layer) {
      Block token = random_block(1);
      std::vector<float> out(width());
      run(layer, token, out.data());
      if (check) check_row(accessible(layer), token, 0, position, out.data());
      outs.push_back(out);
    }
    cache_->end_step();
    return outs;
  }

  // Head records of a unit, [2][n_heads] each: Full, rung after rung, local.
  std::vector<float> heads(int layer, int u = 0) const {
    const LayerCache& l = cache_->unit(layer, u);
    std::vector<float> all;
    const auto add = [&](const TierSlab& slab) {
      for (SlotId s = 0; s < slab.size(); ++s) {
        for (std::size_t k = 0; k < l.head_floats(); ++k) {
          all.push_back(slab.heads(s)[static_cast<int>(k)]);
        }
      }
    };
    add(l.full());
    for (int r = 0; r < l.n_rungs(); ++r) add(l.quantized(r));
    all.insert(all.end(), l.local_heads().begin(), l.local_heads().end());
    return all;
  }

  // Mass of every window of a unit: Full, Quantized, local.
  std::vector<double> masses(int layer, int u = 0) const {
    const LayerCache& l = cache_->unit(layer, u);
    std::vector<double> all(l.full().mass().begin(), l.full().mass().end());
    all.insert(all.end(), l.quantized().mass().begin(), l.quantized().mass().end());
    all.insert(all.end(), l.local_mass().begin(), l.local_mass().end());
    for (const float m : heads(layer, u)) all.push_back(m);
    return all;
  }

  // Mass of all live windows of a unit.
  double mass(int layer, int u = 0) const {
    double sum = 0.0;
    for (const double m : masses(layer, u)) sum += m;
    return sum;
  }

 private:
  struct Block {
    std::vector<float> q, k, v;
    int n = 0;
  };
  static PolicySpec by_head(PolicySpec policy, bool per_head) {
    policy.per_head = per_head;
    return policy;
  }
  int width() const { return g_.n_heads * g_.head_dim; }

  Block random_block(int n) {
    Block b;
    b.n = n;
    const auto fill = [&](std::vector<float>& x, int heads) {
      x.resize(static_cast<std::size_t>(n) * heads * g_.head_dim);
      for (float& f : x) f = normal_(random_);
    };
    fill(b.q, g_.n_heads);
    fill(b.k, g_.n_kv_heads);
    fill(b.v, g_.n_kv_heads);
    // A large constant bias on some key channels, as Qwen2's projections have.
    for (std::size_t i = 3; i < b.k.size(); i += static_cast<std::size_t>(g_.head_dim))
      b.k[i] += 20.0F;
    return b;
  }

  Block slice(const Block& b, int first, int n) const {
    const auto cut = [&](const std::vector<float>& x, int heads) {
      const auto stride = static_cast<std::ptrdiff_t>(heads) * g_.head_dim;
      return std::vector<float>(x.begin() + first * stride, x.begin() + (first + n) * stride);
    };
    return {cut(b.q, g_.n_heads), cut(b.k, g_.n_kv_heads), cut(b.v, g_.n_kv_heads), n};
  }

  void run(int layer, const Block& b, float* out) {
    const QkvBlock qkv{b.q.data(), b.k.data(), b.v.data(), b.n};
    const auto on_all = [&](auto&& work) {
      std::vector<std::thread> threads;
      for (int i = 1; i < n_threads_; ++i) threads.emplace_back([&, i] { work(i); });
      work(0);
      for (std::thread& t : threads) t.join();
    };
    on_all([&](int i) { attention_->prepare(layer, qkv, i, n_threads_); });
    on_all([&](int i) { attention_->attend(layer, out, i, n_threads_); });
  }

  // Everything in the layer's cache, per KV head, dequantised and rotated in double where it can
  // be.
  std::vector<std::vector<AttentionToken>> accessible(int layer) const {
    if (const RowCodec* codec = cache_->codec(layer)) return codec_rows(*codec);
    std::vector<std::vector<AttentionToken>> heads;
    for (int u = 0; u < cache_->units_per_layer(); ++u) {
      for (auto& head : accessible(cache_->unit(layer, u))) heads.push_back(std::move(head));
    }
    return heads;
  }

  std::vector<std::vector<AttentionToken>> accessible(const LayerCache& l) const {
    const Geometry& g = cache_->unit_geometry();
    const int d = g.head_dim;
    std::vector<std::vector<AttentionToken>> heads(g.n_kv_heads);
    const auto add = [&](int h, const auto* k, const auto* v) {
      AttentionToken t;
      for (int c = 0; c < d; ++c) t.k.push_back(k[c]), t.v.push_back(v[c]);
      heads[h].push_back(t);
    };
    std::vector<fp16_t> k16(static_cast<std::size_t>(g.n_kv_heads) * g.window * d), v16(k16.size());
    std::vector<float> k(k16.size()), v(k16.size());
    const auto widen = [&] {
      for (std::size_t i = 0; i < k.size(); ++i)
        k[i] = fp16_to_fp32(k16[i]), v[i] = fp16_to_fp32(v16[i]);
    };
    for (int r = 0; r < l.recent().n_tokens(); ++r) {
      for (int h = 0; h < g.n_kv_heads; ++h) {
        l.recent().read(r, h, k16.data(), v16.data());
        widen();
        add(h, k.data(), v.data());
      }
    }
    const auto add_window = [&] {
      for (int h = 0; h < g.n_kv_heads; ++h) {
        for (int j = 0; j < g.window; ++j) {
          const int at = (h * g.window + j) * d;
          add(h, k.data() + at, v.data() + at);
        }
      }
    };
    for (int s = 0; s < l.full().size(); ++s) {
      l.full().load_full(s, k16.data(), v16.data());
      widen();
      add_window();
    }
    const auto add_quantized = [&](const TierSlab& slab, int s) {
      std::vector<std::uint8_t> block(slab.window_bytes());
      slab.load_block(s, block.data());
      dequantize_window(slab.geometry(), block.data(), k.data(), v.data(), l.range());
      const int first = cache_->config().n_sink + slab.ids()[s] * g.window;
      for (int h = 0; h < g.n_kv_heads; ++h) {
        for (int j = 0; j < g.window; ++j) rotate(first + j, &k[(h * g.window + j) * d]);
      }
      // The materialised cache is an fp16 one.
      if (!cache_->config().fused_attention) round(k), round(v);
      add_window();
    };
    for (int r = 0; r < l.n_rungs() && cache_->config().quantized_accessible; ++r) {
      for (int s = 0; s < l.quantized(r).size(); ++s) add_quantized(l.quantized(r), s);
    }
    return heads;
  }

  std::vector<std::vector<AttentionToken>> codec_rows(const RowCodec& codec) const {
    std::vector<std::vector<AttentionToken>> heads(g_.n_kv_heads);
    std::vector<fp16_t> k(g_.head_dim), v(g_.head_dim);
    for (int h = 0; h < g_.n_kv_heads; ++h) {
      for (int r = 0; r < codec.n_tokens(); ++r) {
        codec.load(h, r, 1, {k.data(), v.data(), 1});
        AttentionToken t;
        for (const fp16_t x : k) t.k.push_back(fp16_to_fp32(x));
        for (const fp16_t x : v) t.v.push_back(fp16_to_fp32(x));
        heads[h].push_back(t);
      }
    }
    return heads;
  }

  static void round(std::vector<float>& x) {
    for (float& f : x) f = fp16_to_fp32(fp32_to_fp16(f));
  }

  void rotate(int position, float* x) const {
    std::vector<float> cos(g_.head_dim / 2), sin(cos.size());
    rope_angles(cache_->rope(), position, cos.data(), sin.data());
    rope_rotate(cache_->rope(), cos.data(), sin.data(), 1.0F, x);
  }

  void check_row(const std::vector<std::vector<AttentionToken>>& keys, const Block& b, int row,
                 int position, const float* out) const {
    const int d = g_.head_dim;
    for (int h = 0; h < g_.n_heads; ++h) {
      std::vector<float> q(
          b.q.begin() + (static_cast<std::ptrdiff_t>(row) * g_.n_heads + h) * d,
          b.q.begin() + (static_cast<std::ptrdiff_t>(row) * g_.n_heads + h + 1) * d);
      rotate(position, q.data());
      const std::vector<AttentionToken>& tokens = keys[h / g_.group_size()];
      std::vector<double> score, o(d, 0.0);
      double max = -1e300, sum = 0.0;
      for (const AttentionToken& t : tokens) {
        double s = 0.0;
        for (int c = 0; c < d; ++c) s += q[c] * t.k[c];
        score.push_back(s / std::sqrt(static_cast<double>(d)));
        max = std::max(max, score.back());
      }
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const double p = std::exp(score[i] - max);
        sum += p;
        for (int c = 0; c < d; ++c) o[c] += p * tokens[i].v[c];
      }
      for (int c = 0; c < d; ++c)
        ASSERT_NEAR(out[h * d + c], o[c] / sum, 2e-4) << "head " << h << " row " << row;
    }
  }

  void check_prompt(std::vector<std::vector<AttentionToken>> keys, const Block& b, int n,
                    const std::vector<float>& out) const {
    const int d = g_.head_dim;
    const int first = cache_->n_tokens();
    for (int t = 0; t < n; ++t) {
      for (int h = 0; h < g_.n_kv_heads; ++h) {
        std::vector<float> k(d), v(d);
        for (int c = 0; c < d; ++c) {
          k[c] = b.k[(static_cast<std::size_t>(t) * g_.n_kv_heads + h) * d + c];
          v[c] = b.v[(static_cast<std::size_t>(t) * g_.n_kv_heads + h) * d + c];
        }
        rotate(first + t, k.data());
        AttentionToken token;
        for (int c = 0; c < d; ++c) {
          token.k.push_back(fp16_to_fp32(fp32_to_fp16(k[c])));
          token.v.push_back(fp16_to_fp32(fp32_to_fp16(v[c])));
        }
        keys[h].push_back(token);
      }
      check_row(keys, b, t, first + t, out.data() + static_cast<std::size_t>(t) * width());
    }
  }

  Geometry g_;
  int n_threads_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  PolicySpec policy_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<TieredAttention> attention_;
};

inline Geometry small(int heads = 6, int kv = 2, int d = 16,
                      RopePairing pairing = RopePairing::Neox) {
  Geometry g;
  g.n_heads = heads;
  g.n_kv_heads = kv;
  g.head_dim = d;
  g.pairing = pairing;
  return g;
}

inline CacheConfig qevict_config(double ratio) {
  CacheConfig c;
  c.budget = {KvBudget::Unit::Ratio, ratio};
  return c;
}

}  // namespace qevict
