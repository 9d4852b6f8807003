// Attention over a precision ladder: the head records, whoever computes them.
#include <gtest/gtest.h>

#include <numeric>

#include "attention/attention_test.h"

namespace qevict {
namespace {

using Driver = AttentionDriver;

CacheConfig ladder_config(double ratio, const char* n_sink = "5", const char* bits = "loss") {
  CacheConfig config = qevict_config(ratio);
  config.policy = "qevict+";
  config.policy_parameters = {{"n_sink", n_sink}, {"bits", bits}};
  configure_policy(*find_policy("qevict+"), config);
  return config;
}

// Sums over all windows: [2][n_heads].
std::vector<double> totals(const Driver& d, int layer, int n_heads) {
  std::vector<double> sum(2 * static_cast<std::size_t>(n_heads));
  const std::vector<float> all = d.heads(layer);
  for (std::size_t i = 0; i < all.size(); ++i) sum[i % sum.size()] += all[i];
  return sum;
}

void expect_totals(const Driver& d, double earlier, double recent) {
  for (int layer = 0; layer < 2; ++layer) {
    const std::vector<double> sum = totals(d, layer, 6);
    for (int h = 0; h < 6; ++h) {
      EXPECT_NEAR(sum[h], earlier, 1e-3) << "layer " << layer << " head " << h;
      EXPECT_NEAR(sum[6 + h], recent, 1e-3) << "layer " << layer << " head " << h;
    }
  }
}

// Without sinks every row of every head adds one to the windows.
TEST(LadderAttention, EveryHeadsRowsAddUpApartByAge) {
  Driver d(small(6, 3, 16), ladder_config(1.0, "0"), 2, 5);
  // The last 32 rows are in three tiles of two blocks.
  d.prompt(135, 64, 50, false);
  expect_totals(d, 135 - 32, 32);
  for (int i = 0; i < 20; ++i) d.step(false);
  expect_totals(d, 135 - 32, 32 + 20);
  d.prompt(70, 64, 64, false);
  expect_totals(d, 135 - 32 + 70 - 32, 32 + 20 + 32);
  d.prompt(9, 64, 64, false);
  expect_totals(d, 135 - 32 + 70 - 32, 32 + 20 + 32 + 9);
}

// What is evicted takes its sums with it; the rest adds up over all rungs.
TEST(LadderAttention, RecordsMoveWithTheirWindowsThroughTheRungs) {
  Driver d(small(6, 3, 16), ladder_config(0.5, "0", "budget"), 2, 5);
  d.prompt(400, 300, 128, true);
  const LayerCache& cache = d.cache().layer(0);
  EXPECT_GT(cache.quantized(0).size() + cache.quantized(1).size(), 0) << "INT8, INT4";
  EXPECT_EQ(cache.n_evicted(), 0);
  expect_totals(d, 400 - 32, 32);
  for (int i = 0; i < 40; ++i) d.step(i % 10 == 0);
  expect_totals(d, 400 - 32, 32 + 40);
  EXPECT_GT(cache.quantized(0).size(), 0);
  EXPECT_GT(cache.quantized(1).size(), 0);
}

TEST(LadderAttention, SameBitsForAnyNumberOfThreads) {
  std::vector<std::vector<std::vector<float>>> runs;
  std::vector<std::vector<float>> heads;
  for (const int threads : {1, 2, 3}) {
    Driver d(small(8, 4, 64), ladder_config(0.4), threads, 21);
    std::vector<std::vector<float>> all;
    const auto keep = [&](const std::vector<std::vector<float>>& outs) {
      all.insert(all.end(), outs.begin(), outs.end());
    };
    keep(d.prompt(400, 64, 192, false));
    for (int i = 0; i < 20; ++i) keep(d.step(false));
    keep(d.prompt(100, 64, 256, false));
    for (int i = 0; i < 10; ++i) keep(d.step(false));
    runs.push_back(all);
    heads.push_back(d.heads(1));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
  EXPECT_EQ(heads[0], heads[1]);
  EXPECT_EQ(heads[0], heads[2]);
}

// Super-ranges come from the tokens after the sinks alone, as they are before RoPE.
TEST(LadderAttention, RangesDoNotDependOnBlocksOrThreads) {
  std::vector<std::vector<fp16_t>> ranges;
  for (const auto& [threads, block] : {std::pair{1, 512}, {3, 64}, {2, 33}}) {
    Driver d(small(6, 3, 16), ladder_config(0.3), threads, 8);
    d.prompt(300, 40, block, false);
    const QuantRange range = d.cache().layer(1).range();
    ASSERT_NE(range.keys, nullptr);
    std::vector<fp16_t>& all = ranges.emplace_back(range.keys, range.keys + 2 * 3 * 16);
    all.insert(all.end(), range.values, range.values + 2 * 3);
  }
  EXPECT_EQ(ranges[0], ranges[1]);
  EXPECT_EQ(ranges[0], ranges[2]);
}

}  // namespace
}  // namespace qevict
