#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "gguf_writer.h"
#include "model/model.h"
#include "model/vocab_metadata.h"

namespace qevict {
namespace {

const Model& tiny_model() {
  static const std::unique_ptr<Model> kModel = [] {
    const std::string path = temp_model_path("tokenizer");
    TinyModel tiny;
    tiny.n_layers = 1, tiny.head_dim = 8, tiny.n_ff = 16;
    EXPECT_EQ(write_tiny_model(path, tiny), "");
    auto model = Model::load(path, {});
    EXPECT_TRUE(model) << model.error().message;
    std::filesystem::remove(path);  // stays mapped
    return std::move(*model);
  }();
  return *kModel;
}
const Tokenizer& tokenizer() { return tiny_model().tokenizer(); }

TEST(Tokenizer, DecodesWhatItEncoded) {
  for (const std::string text :
       {"the cat was on the mat.", "caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC", "a\nb\tc", "42"}) {
    const auto tokens = tokenizer().encode(text, false, false);
    ASSERT_TRUE(tokens) << tokens.error().message;
    // SentencePiece puts a space before the text.
    EXPECT_EQ(tokenizer().decode(*tokens), " " + text);
    std::string pieces;
    for (TokenId token : *tokens) pieces += tokenizer().piece(token);
    EXPECT_EQ(pieces, " " + text);
  }
}

TEST(Tokenizer, AddsAndParsesSpecialTokens) {
  EXPECT_EQ(tokenizer().bos(), 1);
  EXPECT_EQ(tokenizer().eos(), 2);
  EXPECT_EQ(tokenizer().encode("", true, false).value(), std::vector<TokenId>{1});
  EXPECT_EQ(tokenizer().encode("", false, false).value(), std::vector<TokenId>{});
  const auto parsed = tokenizer().encode("<|im_end|>", false, true);
  EXPECT_EQ(parsed.value(), std::vector<TokenId>{4});
  const auto plain = tokenizer().encode("<|im_end|>", false, false);
  EXPECT_GT(plain->size(), 4U);
  EXPECT_EQ(tokenizer().piece(4), "");
  EXPECT_EQ(tokenizer().piece(4, true), "<|im_end|>");
}

TEST(Tokenizer, KnowsTheEndOfGenerationTokens) {
  EXPECT_EQ(tokenizer().eog_tokens(), (std::vector<TokenId>{2, 4}));
  EXPECT_TRUE(tokenizer().is_eog(2));
  EXPECT_TRUE(tokenizer().is_eog(4));
  EXPECT_FALSE(tokenizer().is_eog(1));
  EXPECT_FALSE(tokenizer().is_eog(-1));
  EXPECT_FALSE(tokenizer().is_eog(1 << 30));
}

TEST(Tokenizer, GivesNothingForTokensOutsideTheVocabulary) {
  EXPECT_EQ(tokenizer().piece(-1), "");
  EXPECT_EQ(tokenizer().piece(tokenizer().n_vocab()), "");
}

TEST(Tokenizer, RefusesInvalidUtf8) {
  for (const std::string text :
       {"a\xFF", "\xC0\x80", "\xE2\x82", "\xED\xA0\x80", "\xF4\x90\x80\x80"}) {
    const auto tokens = tokenizer().encode(text, false, false);
    ASSERT_FALSE(tokens);
    EXPECT_EQ(tokens.error().code, ErrorCode::BadInput);
  }
  EXPECT_EQ(find_invalid_utf8("abc\xC3\xA9 \xF0\x9F\x98\x80"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("abc\xC3"), 3U);
}

TEST(Tokenizer, AppliesTheChatTemplate) {
  ASSERT_TRUE(tokenizer().has_chat_template());
  const ChatMessage messages[] = {{"system", "Be kind."}, {"user", "Hi"}};
  const auto text = tokenizer().apply_chat_template(messages, true);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text,
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_FALSE(tokenizer().apply_chat_template({}, true));
  const ChatMessage nul[] = {{"user", std::string("a\0b", 3)}};
  EXPECT_FALSE(tokenizer().apply_chat_template(nul, true));
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  const auto sampler = Sampler::create({}, 4);
  const float nan = std::nanf("");
  EXPECT_EQ(sampler->sample(std::vector<float>{1.0F, 3.0F, 3.0F, 2.0F}), 1);
  EXPECT_EQ(sampler->sample(std::vector<float>{nan, 1.0F, nan, 2.0F}), 3);
  EXPECT_EQ(sampler->sample(std::vector<float>{-INFINITY, -INFINITY, -1.0F, -INFINITY}), 2);
}

TEST(Sampler, RepeatsWithItsSeed) {
  SamplerOptions options;
  options.temperature = 1.0F, options.seed = 42;
  const std::vector<float> logits{1.0F, 1.1F, 0.9F, 1.2F};
  const auto a = Sampler::create(options, 4);
  const auto b = Sampler::create(options, 4);
  std::vector<int> seen(4);
  for (int i = 0; i < 200; ++i) {
    const TokenId token = a->sample(logits);
    EXPECT_EQ(token, b->sample(logits));
    ++seen[static_cast<std::size_t>(token)];
  }
  for (int n : seen) EXPECT_GT(n, 10);
}

TEST(Sampler, NeverTakesABannedToken) {
  SamplerOptions options;
  options.temperature = 2.0F, options.top_k = 0, options.top_p = 1.0F, options.min_p = 0.0F;
  const auto sampler = Sampler::create(options, 3);
  for (int i = 0; i < 100; ++i) {
    EXPECT_NE(sampler->sample(std::vector<float>{1.0F, -INFINITY, 1.0F}), 1);
  }
}

}  // namespace
}  // namespace qevict
