// Prompts and token lists from the command line, files and stdin, checked before a model is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "qevict/result.h"

namespace qevict::cli {

// The whole of a file; "-" is stdin. An interruption gives ErrorCode::Interrupted.
Result<std::string> read_text(const std::string& path);

// BadInput naming `where` and the byte if the text is not UTF-8.
Status check_utf8(const std::string& text, const std::string& where);

// A JSON array of token ids and where it came from.
struct TokenList {
  std::string path;
  std::vector<std::int64_t> ids;
};
Result<TokenList> read_token_list(const std::string& path);
// The ids as tokens; one outside 0..n_vocab-1 is an error that names file and index.
Result<std::vector<TokenId>> to_tokens(const TokenList& list, int n_vocab);

}  // namespace qevict::cli
