// Hyperparameters, tensors and layouts: what a model may be, and what is refused how.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gguf_writer.h"
#include "model/backend.h"
#include "model/hparams.h"
#include "model/llama_tokenizer.h"
#include "model/model.h"
#include "model/weights.h"

namespace qevict {
namespace {

class ModelLoad : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    path_ = temp_model_path(name);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Result<std::unique_ptr<Model>> load(const TinyModel& tiny, const ModelOptions& options = {}) {
    EXPECT_EQ(write_tiny_model(path_.string(), tiny), "");
    return Model::load(path_.string(), options);
  }
  void expect_error(const TinyModel& tiny, const std::string& part) {
    const auto model = load(tiny);
    ASSERT_FALSE(model) << "accepted, expected an error with: " << part;
    EXPECT_EQ(model.error().code, ErrorCode::BadInput);
    EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
    EXPECT_NE(model.error().message.find(path_.string()), std::string::npos);
  }
  static TinyModel with(const std::string& key, std::int64_t value) {
    TinyModel tiny;
    tiny.integers[key] = value;
    return tiny;
  }
  static TinyModel with_text(const std::string& key, const std::string& value) {
    TinyModel tiny;
    tiny.texts[key] = value;
    return tiny;
  }
  static TinyModel lacking(const std::string& name) {
    TinyModel tiny;
    tiny.without.insert(name);
    return tiny;
  }

  std::filesystem::path path_;
};

TEST_F(ModelLoad, ReadsHyperparameters) {
  TinyModel tiny;
  tiny.n_heads = 7, tiny.n_kv_heads = 1, tiny.arch = "qwen2", tiny.rope_base = 1e6;
  const auto model = load(tiny);
  ASSERT_TRUE(model) << model.error().message;
  const HParams& h = (*model)->hparams();
  EXPECT_EQ(h.arch, "qwen2");
  EXPECT_EQ(h.name, "tiny");
  EXPECT_EQ(h.file_type, "f32");
  EXPECT_EQ(h.n_heads, 7);
  EXPECT_EQ(h.n_kv_heads, 1);
  EXPECT_EQ(h.head_dim, 64);
  EXPECT_EQ(h.n_embd, 448);
  EXPECT_EQ(h.n_vocab, tiny_vocab_size());
  EXPECT_EQ(h.rope.pairing, RopePairing::Neox);
  ASSERT_EQ(h.rope.inv_freq.size(), 32U);
  EXPECT_NEAR(h.rope.inv_freq[16], 1e-3, 1e-15);
  EXPECT_EQ(h.weight_bytes, h.n_params * 4);
}

TEST_F(ModelLoad, FoldsRopeScalingIntoTheFrequencies) {
  TinyModel tiny;
  tiny.rope_factors = true;
  auto model = load(tiny);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->hparams().rope.pairing, RopePairing::Interleaved);
  EXPECT_DOUBLE_EQ((*model)->hparams().rope.inv_freq[0], 1.0);
  EXPECT_DOUBLE_EQ((*model)->hparams().rope.inv_freq[16], 0.01 / 4.0);
  tiny = {};
  tiny.rope_scale = 8.0;
  model = load(tiny);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_DOUBLE_EQ((*model)->hparams().rope.inv_freq[0], 1.0 / 8.0);
}

TEST_F(ModelLoad, RefusesUnsupportedModels) {
  expect_error(with_text("general.architecture", "mamba"), "supported are llama, qwen2, qwen3");
  expect_error(with("llama.expert_count", 8), "mixture of experts");
  expect_error(with("split.count", 3), "split over several files");
  expect_error(with_text("general.type", "adapter"), "\"adapter\"");
  expect_error(with_text("llama.rope.scaling.type", "yarn"), "\"yarn\"");
  expect_error(with_text("llama.rope.scaling.type", "longrope"), "\"longrope\"");
  expect_error(with_text("tokenizer.ggml.model", "bert"), "\"bert\"");
}

TEST_F(ModelLoad, RefusesImpossibleHyperparameters) {
  expect_error(lacking("general.architecture"), "\"general.architecture\" is missing");
  expect_error(lacking("llama.block_count"), "\"llama.block_count\" is missing");
  expect_error(with("llama.block_count", 0), "is 0, expected 1 to 512");
  expect_error(with("llama.block_count", 4000000000), "is 4000000000");
  expect_error(with("llama.attention.head_count_kv", 3), "not a multiple of the 3 KV heads");
  expect_error(with("llama.attention.head_count", 0), "llama.attention.head_count");
  expect_error(with("llama.attention.value_length", 32), "values of 32 channels");
  expect_error(with("llama.rope.dimension_count", 32), "a head has 64 channels");
  expect_error(with("llama.embedding_length", 4000000000), "llama.embedding_length");
  expect_error(with("llama.attention.layer_norm_rms_epsilon", 1), "expected float32");
}

TEST_F(ModelLoad, RefusesMissingUnknownAndMisshapenTensors) {
  expect_error(lacking("blk.1.ffn_up.weight"), "\"blk.1.ffn_up.weight\" is missing");
  expect_error(lacking("token_embd.weight"), "\"token_embd.weight\" is missing");
  expect_error(with("llama.block_count", 1), "\"blk.1.attn_norm.weight\" is not one that llama");
  expect_error(with("llama.block_count", 3), "\"blk.2.attn_norm.weight\" is missing");
  expect_error(with("llama.feed_forward_length", 255), "is 256 x 256, expected 256 x 255");
  TinyModel tiny;
  tiny.arch = "qwen2";
  tiny.without.insert("blk.0.attn_k.bias");
  expect_error(tiny, "\"blk.0.attn_k.bias\" is missing");
  tiny = {};
  tiny.arch = "qwen2", tiny.texts["general.architecture"] = "qwen3";
  for (const char* key : {"block_count", "context_length", "embedding_length"}) {
    tiny.integers[std::string("qwen3.") + key] = 2;
  }
  EXPECT_FALSE(load(tiny));
}

TEST_F(ModelLoad, RefusesValuesThatAreNotFinite) {
  ASSERT_EQ(write_tiny_model(path_.string(), {}), "");
  std::uint64_t offset = 0;
  {
    const auto file = GgufFile::open(path_.string(), true);
    ASSERT_TRUE(file);
    offset = file->find_tensor("blk.1.ffn_norm.weight")->offset;
  }
  std::fstream stream(path_, std::ios::in | std::ios::out | std::ios::binary);
  const float nan = std::nanf("");
  stream.seekp(static_cast<std::streamoff>(offset + 20));
  stream.write(reinterpret_cast<const char*>(&nan), sizeof(nan));
  stream.close();
  const auto model = Model::load(path_.string(), {});
  ASSERT_FALSE(model);
  EXPECT_NE(
      model.error().message.find("\"blk.1.ffn_norm.weight\" holds a value that is not finite"),
      std::string::npos)
      << model.error().message;
}

TEST_F(ModelLoad, RefusesBrokenVocabularies) {
  expect_error(lacking("tokenizer.ggml.model"), "\"tokenizer.ggml.model\" is missing");
  expect_error(lacking("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens");
  expect_error(lacking("tokenizer.ggml.scores"), "\"tokenizer.ggml.scores\" is missing");
  expect_error(with("tokenizer.ggml.bos_token_id", 99999),
               "\"tokenizer.ggml.bos_token_id\" is 99999");
  expect_error(with_text("tokenizer.ggml.model", "gpt2"), "\"tokenizer.ggml.merges\" is missing");
  expect_error(with("tokenizer.ggml.tokens", 5), "tokenizer.ggml.tokens");
  EXPECT_TRUE(load(with("tokenizer.ggml.padding_token_id", 0xFFFFFFFF)));  // -1: none
}

TEST_F(ModelLoad, SaysWhichMatricesAreRepacked) {
  TinyModel tiny;
  tiny.type = "q4_0";
  ModelOptions plain;
  plain.repack = false;
  const auto model = load(tiny, plain);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ((*model)->layout_summary(), "repacked 0 of 15 matrices");
  const auto repacked = load(tiny);
  ASSERT_TRUE(repacked) << repacked.error().message;
  if (cpu_extra_buffer_types().empty()) GTEST_SKIP() << "this CPU has no layouts of its own";
  EXPECT_NE((*repacked)->layout_summary().find(" of 15 matrices"), std::string::npos);
}

TEST_F(ModelLoad, RewritesQ5WhenAsked) {
  TinyModel tiny;
  tiny.type = "q5_0";
  ModelOptions options;
  options.rewrite = WeightRewrite::Always;
  const auto rewritten = load(tiny, options);
  ASSERT_TRUE(rewritten) << rewritten.error().message;
  EXPECT_NE((*rewritten)->layout_summary().find("15 rewritten as Q8_0"), std::string::npos)
      << (*rewritten)->layout_summary();
  for (const bool repack : {true, false}) {
    options.rewrite = repack ? WeightRewrite::Never : WeightRewrite::Always;
    options.repack = repack;
    const auto kept = load(tiny, options);
    ASSERT_TRUE(kept) << kept.error().message;
    EXPECT_EQ((*kept)->layout_summary().find("rewritten"), std::string::npos);
  }
}

TEST_F(ModelLoad, ReportsProgressAndCanBeCancelled) {
  TinyModel tiny;
  tiny.type = "q4_0";
  ModelOptions options;
  float last = 0.0F;
  options.progress = [&](float done) {
    EXPECT_GE(done, last);
    last = done;
  };
  const std::atomic<bool> cancel{true};
  ASSERT_TRUE(load(tiny, options));
  EXPECT_EQ(last, 1.0F);
  options.cancel = &cancel;
  options.progress = nullptr;
  const auto model = load(tiny, options);
  if (model && (*model)->layout_summary().starts_with("repacked 0")) {
    GTEST_SKIP() << "nothing is repacked here, so loading does not take time";
  }
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::Interrupted);
}

// Everything that Model::load() does, on bytes in memory.
Status load_bytes(std::span<const std::byte> bytes) {
  const auto file = GgufFile::parse(bytes, "flipped.gguf");
  if (!file) return std::unexpected(file.error());
  const auto arch = read_arch(*file);
  if (!arch) return std::unexpected(arch.error());
  const auto hparams = read_hparams(*file, **arch);
  if (!hparams) return std::unexpected(hparams.error());
  const auto tokenizer = load_tokenizer(*file);
  if (!tokenizer) return std::unexpected(tokenizer.error());
  (void)(*tokenizer)->encode("the cat, was he? \xC3\xA9", true, true);
  const auto weights = Weights::load(*file, *hparams, **arch, {});
  if (!weights) return std::unexpected(weights.error());
  return {};
}

TEST_F(ModelLoad, NoFlippedByteIsFatal) {
  TinyModel tiny;
  tiny.n_layers = 1, tiny.n_heads = 2, tiny.n_kv_heads = 1, tiny.head_dim = 8, tiny.n_ff = 16;
  ASSERT_EQ(write_tiny_model(path_.string(), tiny), "");
  std::ifstream stream(path_, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)),
                         std::istreambuf_iterator<char>());
  // Aligned as a mapped file is.
  const std::size_t size = (text.size() + 4095) / 4096 * 4096;
  std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(4096, size), &std::free);
  auto* bytes = static_cast<std::byte*>(memory.get());
  std::memcpy(bytes, text.data(), text.size());
  ASSERT_TRUE(load_bytes({bytes, text.size()}));
  const std::size_t header =
      text.size() -
      static_cast<std::size_t>(Model::load(path_.string(), {}).value()->hparams().weight_bytes);
  int refused = 0;
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < header; ++i) {
    state = state * 1664525U + 1013904223U;
    const auto mask = static_cast<std::byte>(1U << (state >> 29));
    bytes[i] ^= mask;
    const Status status = load_bytes({bytes, text.size()});
    if (!status) {
      ++refused;
      ASSERT_FALSE(status.error().message.empty());
      ASSERT_EQ(status.error().message.find('\n'), std::string::npos);
    }
    bytes[i] ^= mask;
  }
  EXPECT_GT(refused, static_cast<int>(header) / 10);
}

}  // namespace
}  // namespace qevict
