// kivi, kvquant and zipcache end to end: the recall model answers, bytes are those of the codecs.
#include <cstdio>
#include <string>
#include <vector>

#include "recall_runner.h"

namespace qevict {
namespace {

class Quantisers : public RecallTest {
 protected:
  static CacheConfig config_of(const std::string& policy, const std::string& bits = "") {
    CacheConfig config;
    config.policy = policy;
    if (!bits.empty()) config.policy_parameters = {{"bits", bits}};
    config.budget = {KvBudget::Unit::Ratio, 0.01};  // ignored
    return config;
  }
};

// Thresholds as in recall_accuracy_test.cpp: the measured value beside each.
TEST_F(Quantisers, AnswerFromAWholeQuantisedCache) {
  const struct {
    const char* policy;
    const char* bits;
    double least;
  } cases[] = {{"kivi", "2", 0.9},       // 0.987
               {"kivi", "4", 0.97},      // 1.000
               {"kvquant", "2", 0.9},    // 1.000
               {"kvquant", "4", 0.97},   // 1.000
               {"zipcache", "", 0.97}};  // 1.000
  for (const auto& c : cases) {
    RecallShape shape;
    shape.n_tokens = 1024;
    const RecallScore score = ask(config_of(c.policy, c.bits), shape, 150);
    std::printf("  %s\n", describe(c.policy + std::string(" ") + c.bits, score).c_str());
    EXPECT_GE(score.accuracy(), c.least) << c.policy << c.bits;
  }
}

TEST_F(Quantisers, ReportWhatTheyHold) {
  const RecallPrompt prompt = make_recall_prompt({});
  for (const char* policy : {"kivi", "kvquant", "zipcache"}) {
    SCOPED_TRACE(policy);
    auto session = engine_->create_session(config_of(policy));
    ASSERT_TRUE(session.has_value()) << session.error().message;
    ASSERT_TRUE((*session)->prefill(prompt.tokens, 40, {}).has_value());
    for (int i = 0; i < 20; ++i) ASSERT_TRUE((*session)->decode(prompt.tokens[i]).has_value());
    const CacheStats stats = (*session)->kv_stats();
    EXPECT_EQ(stats.resident_bytes, stats.sink_bytes + stats.local_bytes + stats.quantized_bytes);
    EXPECT_GT(stats.quantized_bytes, stats.local_bytes);
    EXPECT_LT(stats.resident_bytes, stats.full_cache_bytes / 2);
    EXPECT_EQ(stats.full_bytes, 0);
    EXPECT_FALSE(stats.uncompressed);
    EXPECT_FALSE(stats.budget_raised);
  }
}

TEST_F(Quantisers, RefuseWhatTheyCannotDo) {
  const auto error = [&](const char* policy, const char* key, const char* value) {
    CacheConfig config = config_of(policy);
    config.policy_parameters = {{key, value}};
    const auto session = engine_->create_session(config);
    return session ? std::string() : session.error().message;
  };
  EXPECT_NE(error("kivi", "bits", "3").find("bits"), std::string::npos);
  EXPECT_NE(error("kivi", "residual", "48").find("multiple of 32"), std::string::npos);
  EXPECT_NE(error("kvquant", "bits", "8").find("bits"), std::string::npos);
  EXPECT_NE(error("kvquant", "sparsity", "2").find("sparsity"), std::string::npos);
  EXPECT_NE(error("zipcache", "bits", "4").find("bits"), std::string::npos);
  EXPECT_EQ(error("kivi", "residual", "128"), "");
}

// A second prompt reads the dequantised rows of the first.
TEST_F(Quantisers, AnswerAcrossAnAppendedPrompt) {
  for (const char* policy : {"kivi", "kvquant", "zipcache"}) {
    SCOPED_TRACE(policy);
    RecallShape shape;
    shape.n_tokens = 1024;
    RecallScore total;
    for (; total.asked < 60; ++shape.seed) {
      const RecallPrompt prompt = make_recall_prompt(shape);
      auto session = engine_->create_session(config_of(policy));
      ASSERT_TRUE(session.has_value()) << session.error().message;
      const std::span<const TokenId> all(prompt.tokens);
      ASSERT_TRUE((*session)->prefill(all.first(500), 0, {}).has_value());
      ASSERT_TRUE((*session)->prefill(all.subspan(500), 20 * kRecallQuestionTokens, {}));
      const auto score = ask_facts(**session, std::span(prompt.facts).first(20));
      ASSERT_TRUE(score.has_value()) << score.error().message;
      total += *score;
    }
    std::printf("  %s\n", describe(policy, total).c_str());
    EXPECT_GE(total.accuracy(), 0.85);
  }
}

}  // namespace
}  // namespace qevict
