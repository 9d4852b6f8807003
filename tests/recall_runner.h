// Questions to the built-in recall model under a cache configuration, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/engine.h"
#include "eval/recall_model.h"
#include "eval/recall_task.h"

namespace qevict {

class RecallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto file = RecallModelFile::create();
    ASSERT_TRUE(file.has_value()) << file.error().message;
    EngineOptions options;
    options.model_path = file->path();
    options.n_threads = 1;
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    engine_ = std::move(*engine);
  }

  // At least `questions` of them, over as many prompts as they need (seeds count up).
  RecallScore ask(const CacheConfig& config, RecallShape shape, int questions) {
    RecallScore score;
    while (score.asked < questions) {
      const RecallPrompt prompt = make_recall_prompt(shape);
      auto session = engine_->create_session(config);
      if (!session) {
        ADD_FAILURE() << session.error().message;
        return score;
      }
      const auto one = ask_recall(**session, prompt, questions - score.asked);
      if (!one) {
        ADD_FAILURE() << one.error().message;
        return score;
      }
      score += *one;
      ++shape.seed;
    }
    return score;
  }

  // For the log and for messages.
  static std::string describe(const std::string& what, const RecallScore& score) {
    char text[160];
    std::snprintf(text, sizeof(text), "%s: %.3f of %d, %.4f nats a word", what.c_str(),
                  score.accuracy(), score.asked, score.nats_per_word());
    return text;
  }

  std::unique_ptr<Engine> engine_;
};

inline CacheConfig full_cache() {
  CacheConfig config;
  config.policy = "full";
  return config;
}

// QEvict with a share of the full cache's bytes.
inline CacheConfig qevict_cache(double budget) {
  CacheConfig config;
  config.budget = {KvBudget::Unit::Ratio, budget};
  return config;
}

// The same bytes without a Quantized tier: windows are kept whole or dropped.
inline CacheConfig eviction_only(double budget) {
  CacheConfig config = qevict_cache(budget);
  config.quant_share = 0.0;
  return config;
}

// Room for every window in Quantized and for none in Full.
inline CacheConfig quantized_everywhere(int bits) {
  CacheConfig config = qevict_cache(0.95);
  config.quant_share = 1.0;
  config.quant_bits = bits;
  return config;
}

}  // namespace qevict
