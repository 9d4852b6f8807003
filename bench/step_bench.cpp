// Attention of a decode step alone: TieredAttention over a cache filled with random rows, on its
// own threads, with the weights of a layer streamed through the caches between two layers as in a
// model.
//
//   step_bench POLICY TOKENS BUDGET THREADS STEPS [STREAMED_MIB_PER_LAYER]
//   step_bench qevict 16384 0.2 2 40
//
// Prints milliseconds a step (24 layers, 2 KV heads, 7 query heads each, D 64): the slowest
// thread's time in prepare and attend together, barriers included.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "attention/tiered_attention.h"
#include "policies/registry.h"

namespace {

using namespace qevict;
using Clock = std::chrono::steady_clock;

constexpr int kLayers = 24;
constexpr int kBlock = 512;

Geometry shape() {
  Geometry g;
  g.n_heads = 14;
  g.n_kv_heads = 2;
  g.head_dim = 64;
  return g;
}

struct SpinBarrier {
  explicit SpinBarrier(int n) : n(n) {}
  void wait() {
    const int phase = passed.load();
    if (arrived.fetch_add(1) + 1 == n) {
      arrived.store(0);
      passed.fetch_add(1);
    } else {
      while (passed.load() == phase) {
      }
    }
  }
  int n;
  std::atomic<int> arrived{0}, passed{0};
};

// Random rows as the prompt; no attention is computed, so all windows have mass 0.
void fill(KvCache& cache, TieredAttention& attention, int n_tokens, std::vector<float>& noise) {
  const Geometry& g = cache.geometry();
  if (!cache.begin_prompt(n_tokens, 1024)) std::abort();
  attention.begin_prompt(n_tokens, kBlock);
  for (int layer = 0; layer < cache.n_layers(); ++layer) {
    attention.begin_layer(layer);
    for (int first = 0; first < n_tokens; first += kBlock) {
      const int n = std::min(kBlock, n_tokens - first);
      attention.set_block(first, n);
      const float* x = noise.data() + (first + layer * 37) % 1000;
      attention.prepare(layer, {x, x, x + g.head_dim, n}, 0, 1);
    }
    attention.finish_layer(layer);
  }
  cache.commit_prompt();
  attention.end_prompt();
}

double quantile(std::vector<double> x, double q) {
  std::sort(x.begin(), x.end());
  return x[static_cast<std::size_t>(q * static_cast<double>(x.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: step_bench POLICY TOKENS BUDGET THREADS STEPS [STREAMED_MIB]\n");
    return 2;
  }
  const Geometry g = shape();
  const int n_tokens = std::atoi(argv[2]);
  const int n_threads = std::atoi(argv[4]);
  const int steps = std::atoi(argv[5]);
  const std::size_t streamed =
      static_cast<std::size_t>(argc > 6 ? std::atoi(argv[6]) : 15) * (1U << 20U) / sizeof(double);
  CacheConfig config;
  config.policy = argv[1];
  config.budget.value = std::atof(argv[3]);
  auto cache = KvCache::create(g, kLayers, RopeSpec::plain(g.pairing, g.head_dim, 1e6), config,
                               *find_policy(config.policy));
  if (!cache) {
    std::fprintf(stderr, "%s\n", cache.error().message.c_str());
    return 2;
  }
  TieredAttention attention(**cache, active_kernels(), n_threads);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> noise(static_cast<std::size_t>(kBlock) * g.n_heads * g.head_dim + 2048);
  for (float& x : noise) x = normal(random);
  fill(**cache, attention, n_tokens, noise);

  std::vector<double> weights(streamed * 4);  // more than the last cache keeps for one layer
  std::vector<float> out(static_cast<std::size_t>(g.n_heads) * g.head_dim);
  SpinBarrier barrier(n_threads);
  std::vector<double> ms;
  double spent = 0.0;
  std::atomic<double> sink{0.0};
  const auto work = [&](int ith) {
    for (int step = 0; step < steps; ++step) {
      barrier.wait();
      if (ith == 0) {
        attention.begin_step();
        (*cache)->begin_step();
        spent = 0.0;
      }
      for (int layer = 0; layer < kLayers; ++layer) {
        const std::size_t share = streamed / static_cast<std::size_t>(n_threads);
        const double* w = weights.data() + static_cast<std::size_t>(layer % 4) * streamed +
                          share * static_cast<std::size_t>(ith);
        double sum[8] = {};
        for (std::size_t i = 0; i + 8 <= share; i += 8) {
          for (int j = 0; j < 8; ++j) sum[j] += w[i + j];
        }
        sink.store(sum[0] + sum[7], std::memory_order_relaxed);
        barrier.wait();
        const auto start = Clock::now();
        const float* x = noise.data() + (step * 24 + layer) % 1000;
        attention.prepare(layer, {x, x + 7, x + 11, 1}, ith, n_threads);
        barrier.wait();
        attention.attend(layer, out.data(), ith, n_threads);
        barrier.wait();
        if (ith == 0) {
          spent += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
        }
      }
      if (ith == 0) {
        (*cache)->end_step();
        ms.push_back(spent);
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < n_threads; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& t : threads) t.join();
  const TierBytes bytes = (*cache)->bytes();
  std::printf(
      "%s tokens %d budget %s threads %d: min %.2f median %.2f p95 %.2f ms, %zu bytes, %s\n",
      argv[1], n_tokens, argv[3], n_threads, quantile(ms, 0), quantile(ms, 0.5), quantile(ms, 0.95),
      bytes.total(), active_kernels().name);
  return 0;
}
