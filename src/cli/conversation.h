// The text of a conversation as the model's chat template writes it, and its tokens.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "qevict/result.h"

namespace qevict::cli {

// Tokens of a whole conversation that the assistant is to continue. `model` names the file in
// errors.
Result<std::vector<TokenId>> encode_conversation(const Tokenizer& tokenizer,
                                                 std::span<const ChatMessage> messages,
                                                 const std::string& model);

// Tokens that follow the last assistant message of `messages`, whose own text is in the cache
// already: the end of that turn and everything after it. The last message must be a user's.
Result<std::vector<TokenId>> encode_continuation(const Tokenizer& tokenizer,
                                                 std::span<const ChatMessage> messages,
                                                 const std::string& model);

}  // namespace qevict::cli
