// A sample as the model reads it: the chat template around it, and where the context ends.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "eval/cell.h"
#include "eval/task.h"
#include "qevict/result.h"

namespace qevict {

struct EvalPrompt {
  std::vector<TokenId> context;   // read first, then the cache is compressed
  std::vector<TokenId> question;  // appended to the compressed cache; empty with WholePrompt
  int n_tokens() const { return static_cast<int>(context.size() + question.size()); }
};

// With Sample::chat and a model that has a chat template: one user message of context and question,
// then the assistant's turn begins with answer_prefix. Otherwise the three texts as they are.
//
// WholePrompt encodes the text in one piece. ContextOnly cuts it right behind the context, and
// encodes the parts by themselves: no token may hold both context and question. Errors: BadInput,
// where there is nothing on one side of the cut or the template hides it.
Result<EvalPrompt> make_prompt(const Tokenizer& tokenizer, const Sample& sample, Protocol protocol);

}  // namespace qevict
