// Session::prefill_synthetic(): a cache of any depth in seconds, without running the model.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <new>
#include <numbers>

#include "base/fp16.h"
#include "engine/session.h"

namespace qevict {
namespace {

// Pseudo-random numbers that are cheap enough for hundreds of millions of values.
class CheapRandom {
 public:
  explicit CheapRandom(std::uint64_t seed) : state_(seed * 2 + 1) {
    // Box-Muller, once: later values are drawn from this table.
    for (fp16_t& entry : normal_) {
      const double radius = std::sqrt(-2.0 * std::log(uniform()));
      entry =
          fp32_to_fp16(static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * uniform())));
    }
  }

  // In (0, 1].
  double uniform() { return (static_cast<double>(next()) + 1.0) * 0x1p-48; }

  // Standard normal.
  void fill_normal(fp16_t* out, std::size_t n) {
    while (n > 0) {
      std::uint64_t bits = next();
      const std::size_t count = std::min<std::size_t>(n, kPerDraw);
      for (std::size_t i = 0; i < count; ++i, bits >>= kIndexBits) {
        out[i] = normal_[bits % normal_.size()];
      }
      out += count;
      n -= count;
    }
  }

 private:
  static constexpr int kIndexBits = 12;
  static constexpr std::size_t kPerDraw = 4;

  // xorshift64*, its better upper bits.
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 0x2545F4914F6CDD1DULL) >> (64 - kIndexBits * kPerDraw);
  }

  std::uint64_t state_;
  std::array<fp16_t, 1 << kIndexBits> normal_{};
};

// What a policy that selects once reads besides rows: queries and norms as random as the rows.
class SyntheticQueries {
 public:
  SyntheticQueries(const KvCache& cache, int n_tokens)
      : needs_(cache.selector_needs()),
        n_heads_(static_cast<std::size_t>(cache.geometry().n_heads)),
        dim_(static_cast<std::size_t>(cache.geometry().head_dim)),
        n_tokens_(static_cast<std::size_t>(n_tokens)) {
    if (needs_.query_moments) {
      mean_.assign(n_heads_ * dim_, 0.0);
      covariance_.assign(n_heads_ * dim_ * dim_, 0.0);
      for (std::size_t i = 0; i < n_heads_ * dim_; ++i) covariance_[i * dim_ + i % dim_] = 1.0;
    }
  }

  PromptQueries next_layer(CheapRandom& random) {
    PromptQueries queries;
    queries.n_last = std::min(needs_.last_queries, static_cast<int>(n_tokens_));
    std::vector<fp16_t> normal(n_heads_ * dim_ * static_cast<std::size_t>(queries.n_last));
    random.fill_normal(normal.data(), normal.size());
    q_last_.clear();
    for (const fp16_t x : normal) q_last_.push_back(fp16_to_fp32(x));
    queries.q_last = q_last_.data();
    queries.moments = {mean_.data(), covariance_.data(), static_cast<std::int64_t>(n_tokens_)};
    mass_.clear();
    norms_.clear();
    mass_views_.clear();
    norm_views_.clear();
    for (std::size_t h = 0; h < n_heads_; ++h) {
      if (needs_.mass) mass_views_.emplace_back(fill(mass_.emplace_back(), random));
      if (needs_.value_norms) norm_views_.emplace_back(fill(norms_.emplace_back(), random));
    }
    queries.mass = mass_views_;
    queries.value_norms = norm_views_;
    return queries;
  }

 private:
  template <typename T>
  std::span<const T> fill(std::vector<T>& values, CheapRandom& random) const {
    for (std::size_t i = 0; i < n_tokens_; ++i) {
      values.push_back(static_cast<T>(-std::log(random.uniform())));
    }
    return values;
  }

  const SelectorNeeds needs_;
  std::size_t n_heads_, dim_, n_tokens_;
  std::vector<double> mean_, covariance_;
  std::vector<float> q_last_;
  std::vector<std::vector<double>> mass_;
  std::vector<std::vector<float>> norms_;
  std::vector<std::span<const double>> mass_views_;
  std::vector<std::span<const float>> norm_views_;
};

}  // namespace

Status SessionImpl::prefill_synthetic(int n_tokens, int max_new, std::uint64_t seed) {
  if (Status s = check_usable(); !s) return s;
  if (cache_->n_tokens() > 0) {
    return bad_input(fmt::format("the session holds {} tokens (synthetic cache): start a new one",
                                 cache_->n_tokens()));
  }
  try {
    if (Status s = cache_->begin_prompt(n_tokens, max_new); !s) return s;
    PromptGuard guard(*cache_, attention_);
    const Geometry& g = cache_->geometry();
    CheapRandom random(seed);
    PromptRows rows;
    rows.n_rows = rows.capacity = n_tokens;
    rows.n_sink_rows = std::min(cache_->config().n_sink, n_tokens);
    rows.region_begin = cache_->config().n_sink;
    const std::size_t elements =
        static_cast<std::size_t>(g.n_kv_heads) * n_tokens * static_cast<std::size_t>(g.head_dim);
    AlignedBuffer<fp16_t> k, v;
    k.resize_exactly(elements);
    v.resize_exactly(elements);
    rows.k = k.data();
    rows.v = v.data();
    const int n_windows = (n_tokens - rows.n_sink_rows + g.window - 1) / g.window;
    std::vector<std::vector<double>> mass(static_cast<std::size_t>(cache_->units_per_layer()));
    std::vector<PromptMass> views;
    const std::size_t sums = cache_->needs().head_sums ? head_record_floats(g.n_heads)
                             : cache_->needs().mass    ? 1
                                                       : 0;
    // Nothing is further out: the largest entry of the table is 4.1.
    const std::size_t head_extremes = head_extreme_floats(g);
    std::vector<float> extremes(static_cast<std::size_t>(g.n_kv_heads) * head_extremes);
    const std::vector<float> low(static_cast<std::size_t>(g.head_dim), -5.0F);
    const std::vector<float> high(low.size(), 5.0F);
    for (int h = 0; h < g.n_kv_heads; ++h) {
      float* const of_head = extremes.data() + static_cast<std::size_t>(h) * head_extremes;
      begin_head_extremes(g, of_head);
      add_head_extremes(g, 1, low.data(), low.data(), of_head);
      add_head_extremes(g, 1, high.data(), high.data(), of_head);
    }
    rows.extremes = extremes.data();
    for (std::vector<double>& unit : mass) {
      unit.resize(static_cast<std::size_t>(n_windows) * sums);
      views.push_back({{}, {}, unit});
    }
    SyntheticQueries queries(*cache_, n_tokens);
    for (int layer = 0; layer < cache_->n_layers(); ++layer) {
      random.fill_normal(k.data(), elements);
      random.fill_normal(v.data(), elements);
      for (std::vector<double>& unit : mass) {
        // Exponential with the mean of a real prompt: each of its rows adds a mass of one.
        for (double& m : unit) m = -std::log(random.uniform()) * g.window + 1e-6;
      }
      if (Status s = cache_->finish_prompt_layer(layer, rows, views, queries.next_layer(random));
          !s) {
        return s;
      }
    }
    guard.commit();
  } catch (const std::bad_alloc&) {
    return runtime_error(
        fmt::format("out of memory ({} synthetic tokens): use a smaller depth", n_tokens));
  }
  return {};
}

}  // namespace qevict
