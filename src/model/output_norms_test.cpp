#include "model/output_norms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "ggml.h"
#include "gguf_writer.h"
#include "model/gguf_file.h"

namespace qevict {
namespace {

std::vector<float> random_values(int n) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& value : x) value = normal(random);
  return x;
}

// W_o as the file has it, in fp32: [n_embd][n_heads * head_dim].
std::vector<float> projection(const GgufFile& file, int layer) {
  const GgufTensor& tensor =
      *file.find_tensor("blk." + std::to_string(layer) + ".attn_output.weight");
  std::vector<float> w(static_cast<std::size_t>(tensor.n_elements()));
  const auto* bytes = file.data().data() + tensor.offset;
  const auto type = static_cast<ggml_type>(tensor.type);
  if (type == GGML_TYPE_F32) {
    std::memcpy(w.data(), bytes, tensor.n_bytes);
  } else {
    ggml_get_type_traits(type)->to_float(bytes, w.data(), tensor.n_elements());
  }
  return w;
}

void expect_norms(const TinyModel& tiny, bool repack) {
  const std::filesystem::path path = temp_model_path("output_norms_" + tiny.type);
  ASSERT_EQ(write_tiny_model(path.string(), tiny), "");
  ModelOptions options;
  options.repack = repack;
  const auto model = Model::load(path.string(), options);
  ASSERT_TRUE(model) << model.error().message;
  const auto file = GgufFile::open(path.string(), true);
  ASSERT_TRUE(file);
  auto norms = OutputNorms::create(**model);
  ASSERT_TRUE(norms);
  EXPECT_EQ((*norms)->n_layers(), tiny.n_layers);
  EXPECT_EQ((*norms)->n_heads(), tiny.n_heads);
  constexpr int kTokens = 70;  // more than a block and no multiple of the tokens in one
  const int d = tiny.head_dim, n_in = tiny.n_heads * d, n_out = (*model)->hparams().n_embd;
  const std::vector<float> v = random_values(kTokens * d);
  std::vector<float> got(kTokens);
  for (const int layer : {1, 0, 1}) {
    const std::vector<float> w = projection(*file, layer);
    for (int h = 0; h < tiny.n_heads; ++h) {
      ASSERT_TRUE((*norms)->compute(layer, h, v.data(), kTokens, got.data()));
      for (int t = 0; t < kTokens; t += 23) {
        double expected = 0.0;
        for (int j = 0; j < n_out; ++j) {
          double out = 0.0;
          for (int c = 0; c < d; ++c) out += double{v[t * d + c]} * w[j * n_in + h * d + c];
          expected += std::fabs(out);
        }
        EXPECT_NEAR(got[t], expected, 1e-5 * expected) << layer << " " << h << " " << t;
      }
    }
  }
  std::filesystem::remove(path);
}

TinyModel tiny_model(const char* arch, const char* type, int n_heads, int head_dim) {
  TinyModel tiny;
  tiny.arch = arch;
  tiny.type = type;
  tiny.n_heads = n_heads;
  tiny.head_dim = head_dim;
  return tiny;
}

TEST(OutputNorms, MatchTheDefinitionOnF32) {
  expect_norms(tiny_model("llama", "f32", 4, 64), false);
}

TEST(OutputNorms, ReadWeightsThatWereRepacked) {
  expect_norms(tiny_model("llama", "q4_0", 8, 32), true);
  expect_norms(tiny_model("qwen2", "q4_K", 4, 64), true);
}

TEST(OutputNorms, TakeHeadsWiderThanTheModelAndOddWidths) {
  TinyModel tiny = tiny_model("qwen3", "f16", 4, 40);
  tiny.n_embd = 72;
  expect_norms(tiny, true);
}

TEST(OutputNorms, OfAProjectionInMemory) {
  const std::vector<float> w = {1, -2, 3, 0.5F, 0, -1};  // [2][3]
  const std::vector<float> v = {1, 2, 0, -1};
  std::vector<float> norms(2);
  product_l1_norms(v.data(), 2, w.data(), 2, 3, norms.data());
  EXPECT_EQ(norms, (std::vector<float>{2.0F + 2.0F + 1.0F, 1.5F}));
}

}  // namespace
}  // namespace qevict
