// Counts heap allocations: this file replaces the global operator new of the test program.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kv/kv_cache_model.h"

namespace {
std::atomic<long> g_allocations{0};
}

void* operator new(std::size_t size) {
  ++g_allocations;
  if (void* p = std::malloc(size)) return p;
  std::abort();
}
void* operator new(std::size_t size, std::align_val_t align) {
  ++g_allocations;
  const auto a = static_cast<std::size_t>(align);
  if (void* p = std::aligned_alloc(a, (size + a - 1) / a * a)) return p;
  std::abort();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace qevict {
namespace {

TEST(KvCacheAllocations, AStepBetweenEventsMakesNone) {
  Geometry g;
  g.n_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = 8;
  const PolicySpec policies[] = {test_policy(Schedule::EveryWindow, false),
                                 test_policy(Schedule::Never, false),
                                 test_policy(Schedule::EveryWindow, false, false, true)};
  for (const PolicySpec& policy : policies) {
    for (const int first : {3, 131}) {
      CacheConfig config;
      Driver driver(g, 2, config, policy, 3);
      ASSERT_TRUE(driver.prompt(first, 300).has_value());
      KvCache& cache = driver.cache();
      const std::vector<float> row(8, 0.5F);
      for (int i = 0; i < 200; ++i) {
        const long before = g_allocations;
        cache.begin_step();
        for (int layer = 0; layer < 2; ++layer) {
          for (int h = 0; h < 2; ++h) cache.append(layer, h, row.data(), row.data());
          for (double& m : cache.layer(layer).local_mass()) m += 0.25;
        }
        cache.end_step();
        if (cache.steps_since_prompt() % g.window != 0) EXPECT_EQ(g_allocations, before) << i;
      }
    }
  }
  EXPECT_GT(g_allocations, 0);
}

TEST(KvCacheAllocations, PlanningALadderReusesItsBuffers) {
  std::vector<RungId> stored(500, kUnquantised);
  std::vector<float> scores(500);
  for (int i = 0; i < 500; ++i) scores[i] = static_cast<float>(i * 7919 % 500);
  LadderPlan plan;
  RoutingPlan routing;
  plan_ladder(stored, scores, {{20, 100, 0, 50}}, plan);
  routing.take(plan);
  const long before = g_allocations;
  plan_ladder(stored, scores, {{20, 100, 0, 50}}, plan);
  routing.take(plan);
  EXPECT_EQ(g_allocations, before);
}

TEST(KvCacheAllocations, PlanningReusesItsBuffers) {
  std::vector<WindowView> windows(500);
  std::vector<float> scores(500);
  for (int i = 0; i < 500; ++i) windows[i].id = i, scores[i] = static_cast<float>(i * 7919 % 500);
  RoutingPlan plan;
  plan_routing(windows, scores, {20, 100}, {}, plan);
  const long before = g_allocations;
  plan_routing(windows, scores, {20, 100}, {}, plan);
  EXPECT_EQ(g_allocations, before);
}

}  // namespace
}  // namespace qevict
