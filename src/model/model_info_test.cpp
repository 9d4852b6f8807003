#include "model/model_info.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "gguf_writer.h"

namespace qevict {
namespace {

class ModelInfo : public testing::Test {
 protected:
  void SetUp() override {
    path_ = temp_model_path(testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::string path_;
};

TEST_F(ModelInfo, SaysWhatTheLoadedModelSays) {
  TinyModel tiny;
  tiny.arch = "qwen2";
  tiny.type = "q8_0";
  ASSERT_EQ(write_tiny_model(path_, tiny), "");
  const Result<HParams> info = read_model_info(path_);
  ASSERT_TRUE(info) << info.error().message;
  const auto model = Model::load(path_, {});
  ASSERT_TRUE(model) << model.error().message;
  const HParams& loaded = (*model)->hparams();
  EXPECT_EQ(info->arch, "qwen2");
  EXPECT_EQ(info->file_type, loaded.file_type);
  EXPECT_EQ(info->n_params, loaded.n_params);
  EXPECT_EQ(info->weight_bytes, loaded.weight_bytes);
  EXPECT_GT(info->weight_bytes, 0);
  EXPECT_EQ(info->n_layers, loaded.n_layers);
  EXPECT_EQ(info->n_kv_heads, loaded.n_kv_heads);
  EXPECT_EQ(info->head_dim, loaded.head_dim);
  EXPECT_EQ(info->n_ctx_train, loaded.n_ctx_train);
  EXPECT_EQ(info->n_vocab, loaded.n_vocab);
}

TEST_F(ModelInfo, NeedsNoWeights) {
  TinyModel holed;
  holed.without = {"blk.1.attn_k.weight"};
  ASSERT_EQ(write_tiny_model(path_, holed), "");
  EXPECT_FALSE(Model::load(path_, {}));
  EXPECT_TRUE(read_model_info(path_));
}

TEST_F(ModelInfo, RefusesWhatIsNoModel) {
  EXPECT_EQ(read_model_info(path_ + ".gone").error().code, ErrorCode::BadInput);
  TinyModel strange;
  strange.texts["general.architecture"] = "gpt9";
  ASSERT_EQ(write_tiny_model(path_, strange), "");
  const Result<HParams> info = read_model_info(path_);
  ASSERT_FALSE(info);
  EXPECT_NE(info.error().message.find("gpt9"), std::string::npos);
}

}  // namespace
}  // namespace qevict
