#include "eval/prompt.h"

#include <array>
#include <string>

namespace qevict {
namespace {

// Stands where the context ends in a rendered template. Templates trim messages at their ends, not
// inside.
constexpr const char* kCutMark = "qevict-cut-8d0c41";

// The text on both sides of the end of the context.
struct CutText {
  std::string before, after;
  bool add_bos = true;   // the template does not write it
  bool markers = false;  // the text has a template's special tokens
};

Result<CutText> cut_chat(const Tokenizer& tokenizer, const Sample& sample) {
  const std::array<ChatMessage, 1> messages = {
      ChatMessage{"user", sample.context + kCutMark + sample.question}};
  const Result<std::string> text = tokenizer.apply_chat_template(messages, true);
  if (!text) return std::unexpected(text.error());
  const std::string bos = tokenizer.bos() >= 0 ? tokenizer.piece(tokenizer.bos(), true) : "";
  const std::size_t cut = text->find(kCutMark);
  if (cut == std::string::npos) {
    return bad_input(
        "the chat template changes messages (tokenizer.chat_template): it cannot be evaluated");
  }
  CutText parts;
  parts.before = text->substr(0, cut);
  parts.after = text->substr(cut + std::string(kCutMark).size()) + sample.answer_prefix;
  parts.add_bos = bos.empty() || !text->starts_with(bos);
  parts.markers = true;
  return parts;
}

}  // namespace

Result<EvalPrompt> make_prompt(const Tokenizer& tokenizer, const Sample& sample,
                               Protocol protocol) {
  CutText text{sample.context, sample.question + sample.answer_prefix};
  if (sample.chat && tokenizer.has_chat_template()) {
    Result<CutText> chat = cut_chat(tokenizer, sample);
    if (!chat) return std::unexpected(chat.error());
    text = std::move(*chat);
  }
  if (protocol == Protocol::WholePrompt) {
    text.before += text.after;
    text.after.clear();
  }
  EvalPrompt prompt;
  Result<std::vector<TokenId>> tokens = tokenizer.encode(text.before, text.add_bos, text.markers);
  if (!tokens) return std::unexpected(tokens.error());
  prompt.context = std::move(*tokens);
  if (prompt.context.empty()) return bad_input("the prompt is empty: give it a text");
  if (protocol == Protocol::WholePrompt) return prompt;
  tokens = tokenizer.encode(text.after, false, text.markers);
  if (!tokens) return std::unexpected(tokens.error());
  prompt.question = std::move(*tokens);
  if (prompt.question.empty()) {
    return bad_input("nothing follows the context (--protocol context): use --protocol whole");
  }
  return prompt;
}

}  // namespace qevict
