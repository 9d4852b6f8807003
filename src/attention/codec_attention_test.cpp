// Attention over row codecs: against a plain double-precision attention over the rows that the
// codecs give, and against the full cache where nothing is quantised.
#include "attention/codec_attention.h"

#include <gtest/gtest.h>

#include "attention/attention_test.h"

namespace qevict {
namespace {

using Driver = AttentionDriver;
using Outputs = std::vector<std::vector<float>>;

constexpr const char* kPolicies[] = {"kivi", "kvquant", "zipcache"};

CacheConfig config_of(const char* policy) {
  CacheConfig config;
  config.policy = policy;
  return config;
}

void keep(Outputs& all, const Outputs& outs) { all.insert(all.end(), outs.begin(), outs.end()); }

TEST(CodecAttention, EqualsPlainAttentionOnPromptsAndSteps) {
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    Driver d(small(6, 2, 16, RopePairing::Interleaved), config_of(policy), 2, 7);
    d.prompt(301, 60, 64, true);
    for (int i = 0; i < 40; ++i) d.step(true);
    d.prompt(77, 130, 32, true);
    for (int i = 0; i < 105; ++i) d.step(i > 90);
    EXPECT_GT(d.cache().bytes().quantized, 0U);
  }
}

TEST(CodecAttention, SameBitsForAnyNumberOfThreads) {
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    std::vector<Outputs> runs;
    for (const int threads : {1, 3}) {
      Driver d(small(8, 4, 32), config_of(policy), threads, 21);
      Outputs all = d.prompt(530, 64, 256, false);
      for (int i = 0; i < 40; ++i) keep(all, d.step(false));
      keep(all, d.prompt(60, 120, 16, false));
      for (int i = 0; i < 110; ++i) keep(all, d.step(false));
      runs.push_back(all);
    }
    EXPECT_EQ(runs[0], runs[1]);
  }
}

TEST(CodecAttention, GivesTheFullCachesOutputWhileNothingIsQuantised) {
  std::vector<Outputs> runs;
  for (const char* policy : {"full", "kivi", "kvquant"}) {
    Driver d(small(8, 2, 64), config_of(policy), 2, 33);
    Outputs all = d.prompt(17, 64, 256, false);
    for (int i = 0; i < 14; ++i) keep(all, d.step(false));
    runs.push_back(all);
    EXPECT_EQ(d.cache().bytes().quantized, 0U);
  }
  // All tokens are in the full cache's local zone, in one item as well.
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

TEST(CodecAttention, APromptThatIsTakenBackLeavesTheCacheAsItWas) {
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    std::vector<Outputs> runs;
    for (const bool interrupted : {false, true}) {
      Driver d(small(), config_of(policy), 1, 5);
      d.prompt(200, 64, 256, false);
      if (interrupted) {
        const TierBytes before = d.cache().bytes();
        ASSERT_TRUE(d.cache().begin_prompt(90, 10).has_value());
        d.attention().begin_prompt(90, 90);
        d.attention().begin_layer(0);
        const std::vector<float> x(90 * 6 * 16, 0.5F);
        std::vector<float> out(x.size());
        d.attention().set_block(0, 90);
        d.attention().prepare(0, {x.data(), x.data(), x.data(), 90}, 0, 1);
        d.attention().attend(0, out.data(), 0, 1);
        d.attention().finish_layer(0);
        EXPECT_GT(d.cache().backup_bytes(), 0U);
        d.attention().end_prompt();
        d.cache().rollback_prompt();
        EXPECT_EQ(d.cache().bytes().total(), before.total());
      }
      Outputs all;
      for (int i = 0; i < 30; ++i) keep(all, d.step(false));
      runs.push_back(all);
    }
    EXPECT_EQ(runs[0], runs[1]);
  }
}

TEST(CodecAttention, IgnoresTheBudgetAndTheUnfusedMode) {
  for (const char* policy : kPolicies) {
    CacheConfig config = config_of(policy);
    std::vector<Outputs> runs;
    for (const double budget : {0.05, 1.0}) {
      config.budget = {KvBudget::Unit::Ratio, budget};
      Driver d(small(), config, 1, 5);
      d.prompt(200, 64, 256, false);
      Outputs all;
      for (int i = 0; i < 10; ++i) keep(all, d.step(false));
      runs.push_back(all);
      EXPECT_FALSE(d.cache().budget().uncompressed);
    }
    EXPECT_EQ(runs[0], runs[1]);
    config.fused_attention = false;
    Driver d(small(), config, 2, 5);
    d.prompt(200, 64, 256, true);
    for (int i = 0; i < 3; ++i) d.step(true);
  }
}

}  // namespace
}  // namespace qevict
