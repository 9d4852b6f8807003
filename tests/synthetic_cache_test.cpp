// Session::prefill_synthetic(): caches of any depth for benchmarks.
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/engine.h"
#include "gguf_writer.h"

namespace qevict {
namespace {

std::unique_ptr<Engine> load_tiny_model() {
  const std::string path = temp_model_path("synthetic");
  EXPECT_EQ(write_tiny_model(path, TinyModel{}), "");
  EngineOptions options;
  options.model_path = path;
  options.n_threads = 1;
  auto engine = Engine::load(options);
  std::filesystem::remove(path);  // stays mapped
  EXPECT_TRUE(engine.has_value()) << (engine ? "" : engine.error().message);
  return engine ? std::move(*engine) : nullptr;
}

TokenId token_at(int i) { return 5 + i * 37 % (tiny_vocab_size() - 5); }

TEST(SyntheticCache, IsAsLargeAsARealOneAndGoesOn) {
  const auto engine = load_tiny_model();
  ASSERT_NE(engine, nullptr);
  for (const char* policy : {"full", "qevict"}) {
    CacheConfig config;
    config.policy = policy;
    std::vector<TokenId> prompt;
    for (int t = 0; t < 1003; ++t) prompt.push_back(token_at(t));
    auto real = engine->create_session(config), synthetic = engine->create_session(config);
    ASSERT_TRUE(real.has_value() && synthetic.has_value());
    ASSERT_TRUE((*real)->prefill(prompt, 40, {}).has_value());
    ASSERT_TRUE((*synthetic)->prefill_synthetic(1003, 40, 1).has_value());
    for (int step = 0; step < 40; ++step) {
      const CacheStats a = (*real)->kv_stats(), b = (*synthetic)->kv_stats();
      ASSERT_EQ(a.n_tokens, b.n_tokens);
      ASSERT_EQ(a.resident_bytes, b.resident_bytes);
      ASSERT_EQ(a.quantized_windows, b.quantized_windows);
      ASSERT_EQ(a.evicted_windows, b.evicted_windows);
      ASSERT_TRUE((*real)->decode(token_at(step)).has_value());
      ASSERT_TRUE((*synthetic)->decode(token_at(step)).has_value());
    }
    EXPECT_EQ((*synthetic)->kv_stats().events, 6);
    // Only an empty session can be filled.
    EXPECT_FALSE((*synthetic)->prefill_synthetic(10, 40, 1).has_value());
    EXPECT_EQ((*synthetic)->n_tokens(), 1043);
  }
}

TEST(SyntheticCache, DependsOnItsSeedAlone) {
  const auto engine = load_tiny_model();
  ASSERT_NE(engine, nullptr);
  std::vector<std::vector<float>> first;
  for (const std::uint64_t seed : {1, 1, 2}) {
    auto session = engine->create_session({});
    ASSERT_TRUE((*session)->prefill_synthetic(400, 10, seed).has_value());
    const auto logits = (*session)->decode(9);
    ASSERT_TRUE(logits.has_value());
    first.emplace_back(logits->begin(), logits->end());
  }
  EXPECT_EQ(first[0], first[1]);
  EXPECT_NE(first[0], first[2]);
}

}  // namespace
}  // namespace qevict
