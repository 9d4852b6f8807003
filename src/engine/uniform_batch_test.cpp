#include "engine/uniform_batch.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "gguf_writer.h"

namespace qevict {
namespace {

using Logits = std::vector<float>;

class UniformBatchTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    TinyModel model;
    model.n_heads = 12;
    model.head_dim = 64;  // 768 columns, blocks of q4_K
    model.n_ff = 1024;
    model.type = GetParam();
    path_ = temp_model_path(std::string("uniform_") + GetParam());
    ASSERT_EQ(write_tiny_model(path_, model), "");
    EngineOptions options;
    options.model_path = path_;
    options.n_threads = 1;
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    engine_ = std::move(*engine);
  }
  void TearDown() override {
    engine_.reset();
    std::filesystem::remove(path_);
  }
  // Logits of the last of `n` sequences, each of them a prompt of its own, after six steps.
  Logits decode_last_of(int n) {
    std::vector<std::unique_ptr<Session>> sessions;
    for (int i = 0; i < n; ++i) {
      CacheConfig full;
      full.policy = "full";
      sessions.push_back(std::move(*engine_->create_session(full)));
      const std::vector<TokenId> prompt = {5, 9, i + 1 == n ? 3 : 20 + i};
      EXPECT_TRUE(sessions.back()->prefill(prompt, 8, {}).has_value());
    }
    UniformBatch batch(*engine_);
    Logits last;
    for (int step = 0; step < 6; ++step) {
      std::vector<BatchInput> inputs;
      for (const auto& session : sessions) inputs.push_back({session.get(), 30 + step});
      const auto rows = batch.decode(inputs);
      if (!rows || rows->size() != inputs.size() || !rows->back()) {
        ADD_FAILURE() << "no logits";
        return {};
      }
      last.assign(rows->back()->begin(), rows->back()->end());
    }
    return last;
  }
  std::string path_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(UniformBatchTest, ASequenceHasTheSameBitsInAnyCompany) {
  const Logits alone = decode_last_of(1);
  ASSERT_FALSE(alone.empty());
  for (const int n : {2, 3, 4, 5, 7, 8, 9, 13})
    EXPECT_EQ(decode_last_of(n), alone) << n << " sequences";
}

INSTANTIATE_TEST_SUITE_P(Types, UniformBatchTest,
                         ::testing::Values("f32", "f16", "q8_0", "q4_0", "q5_0", "q4_K", "q6_K"));

}  // namespace
}  // namespace qevict
