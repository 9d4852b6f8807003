#include "eval/prompt.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

// A token a byte, 256 for the beginning of a text, 257 for every "<|" where markers are read.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string chat;  // what stands before a message; "": no template

  Result<std::vector<TokenId>> encode(const std::string& text, bool add_special,
                                      bool parse_special) const override {
    std::vector<TokenId> tokens;
    if (add_special) tokens.push_back(256);
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool marker = parse_special && text.compare(i, 2, "<|") == 0;
      tokens.push_back(marker ? 257 : static_cast<unsigned char>(text[i]));
      i += marker;
    }
    return tokens;
  }
  std::string piece(TokenId token, bool special) const override {
    if (token == 256) return special ? "<s>" : "";
    if (token == 257) return special ? "<|" : "";
    return std::string(1, static_cast<char>(token));
  }
  std::string decode(std::span<const TokenId> tokens, bool special) const override {
    std::string text;
    for (const TokenId t : tokens) text += piece(t, special);
    return text;
  }
  bool is_eog(TokenId) const override { return false; }
  std::vector<TokenId> eog_tokens() const override { return {}; }
  TokenId bos() const override { return 256; }
  TokenId eos() const override { return -1; }
  int n_vocab() const override { return 258; }
  bool has_chat_template() const override { return !chat.empty(); }
  const std::string& chat_template() const override { return chat; }
  Result<std::string> apply_chat_template(std::span<const ChatMessage> messages,
                                          bool) const override {
    return chat + messages[0].content + "<|end\n<|assistant\n";
  }
};

Sample make_sample() {
  Sample s;
  s.context = "facts";
  s.question = " which?";
  s.answer_prefix = "It is";
  return s;
}

TEST(EvalPrompt, WholePromptIsOneText) {
  const ByteTokenizer tokenizer;
  const auto prompt = make_prompt(tokenizer, make_sample(), Protocol::WholePrompt);
  ASSERT_TRUE(prompt.has_value());
  EXPECT_EQ(tokenizer.decode(prompt->context, true), "<s>facts which?It is");
  EXPECT_TRUE(prompt->question.empty());
  EXPECT_EQ(prompt->n_tokens(), 18);
}

TEST(EvalPrompt, ContextOnlyIsCutBehindTheContext) {
  const ByteTokenizer tokenizer;
  const auto prompt = make_prompt(tokenizer, make_sample(), Protocol::ContextOnly);
  ASSERT_TRUE(prompt.has_value());
  EXPECT_EQ(tokenizer.decode(prompt->context, true), "<s>facts");
  EXPECT_EQ(tokenizer.decode(prompt->question, true), " which?It is");
}

TEST(EvalPrompt, TheChatTemplateStandsAroundBothParts) {
  ByteTokenizer tokenizer;
  tokenizer.chat = "<|user\n";
  auto prompt = make_prompt(tokenizer, make_sample(), Protocol::ContextOnly);
  ASSERT_TRUE(prompt.has_value());
  EXPECT_EQ(tokenizer.decode(prompt->context, true), "<s><|user\nfacts");
  EXPECT_EQ(prompt->context[1], 257);  // the template's marker is a token
  EXPECT_EQ(tokenizer.decode(prompt->question, true), " which?<|end\n<|assistant\nIt is");
  prompt = make_prompt(tokenizer, make_sample(), Protocol::WholePrompt);
  EXPECT_EQ(tokenizer.decode(prompt->context, true),
            "<s><|user\nfacts which?<|end\n<|assistant\nIt is");
  Sample plain = make_sample();
  plain.chat = false;
  prompt = make_prompt(tokenizer, plain, Protocol::WholePrompt);
  EXPECT_EQ(tokenizer.decode(prompt->context, true), "<s>facts which?It is");
}

TEST(EvalPrompt, ATemplateThatBeginsTheTextItselfGetsNoSecondBeginning) {
  ByteTokenizer tokenizer;
  tokenizer.chat = "<s>User: ";
  const auto prompt = make_prompt(tokenizer, make_sample(), Protocol::WholePrompt);
  ASSERT_TRUE(prompt.has_value());
  EXPECT_NE(prompt->context.front(), 256);
}

TEST(EvalPrompt, ContextOnlyNeedsAQuestion) {
  const ByteTokenizer tokenizer;
  Sample sample = make_sample();
  sample.question.clear();
  sample.answer_prefix.clear();
  const auto prompt = make_prompt(tokenizer, sample, Protocol::ContextOnly);
  ASSERT_FALSE(prompt.has_value());
  EXPECT_EQ(prompt.error().code, ErrorCode::BadInput);
  EXPECT_TRUE(make_prompt(tokenizer, sample, Protocol::WholePrompt).has_value());
}

}  // namespace
}  // namespace qevict
