#include "cli/conversation.h"

#include <fmt/format.h>

namespace qevict::cli {
namespace {

// Stands for the assistant's answer in a rendered template: what follows it is the continuation.
// Templates trim and rewrite answers, so that the answer itself could not be found again.
constexpr const char* kAnswerMark = "qevict-answer-5b1f27";

Result<std::string> render(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                           const std::string& model) {
  if (!tokenizer.has_chat_template()) {
    return bad_input(
        fmt::format("the model has no chat template ({}): use `qevict run` without --chat", model));
  }
  return tokenizer.apply_chat_template(messages, true);
}

}  // namespace

Result<std::vector<TokenId>> encode_conversation(const Tokenizer& tokenizer,
                                                 std::span<const ChatMessage> messages,
                                                 const std::string& model) {
  const Result<std::string> text = render(tokenizer, messages, model);
  if (!text) return std::unexpected(text.error());
  // A template that writes the BOS itself must not get a second one.
  const std::string bos = tokenizer.bos() >= 0 ? tokenizer.piece(tokenizer.bos(), true) : "";
  const bool has_bos = !bos.empty() && text->starts_with(bos);
  return tokenizer.encode(*text, !has_bos, true);
}

Result<std::vector<TokenId>> encode_continuation(const Tokenizer& tokenizer,
                                                 std::span<const ChatMessage> messages,
                                                 const std::string& model) {
  std::vector<ChatMessage> marked(messages.begin(), messages.end());
  for (auto message = marked.rbegin(); message != marked.rend(); ++message) {
    if (message->role == "assistant") {
      message->content = kAnswerMark;
      break;
    }
  }
  const Result<std::string> text = render(tokenizer, marked, model);
  if (!text) return std::unexpected(text.error());
  const std::size_t mark = text->rfind(kAnswerMark);
  if (mark == std::string::npos) {
    return bad_input(fmt::format(
        "the chat template drops earlier answers ({}): use /clear between questions", model));
  }
  return tokenizer.encode(text->substr(mark + std::string(kAnswerMark).size()), false, true);
}

}  // namespace qevict::cli
