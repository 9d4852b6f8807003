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
    for (std::vector<double>& unit : mass) {
      if (cache_->needs().mass) unit.resize(static_cast<std::size_t>(n_windows));
      views.push_back({{}, {}, unit});
    }
    for (int layer = 0; layer < cache_->n_layers(); ++layer) {
      random.fill_normal(k.data(), elements);
      random.fill_normal(v.data(), elements);
      for (std::vector<double>& unit : mass) {
        // Exponential with the mean of a real prompt: each of its rows adds a mass of one.
        for (double& m : unit) m = -std::log(random.uniform()) * g.window + 1e-6;
      }
      cache_->finish_prompt_layer(layer, rows, views);
    }
    guard.commit();
  } catch (const std::bad_alloc&) {
    return runtime_error(
        fmt::format("out of memory ({} synthetic tokens): use a smaller depth", n_tokens));
  }
  return {};
}

}  // namespace qevict
