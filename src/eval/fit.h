// Prompts as long as the context allows, with the tokenizer in the loop.
#pragma once

#include <functional>
#include <string_view>

#include "eval/task.h"
#include "qevict/result.h"

namespace qevict {

// Tokens of the sample's prompt, with the chat template where the sample asks for one and the model
// has one.
Result<int> count_prompt_tokens(const Tokenizer& tokenizer, const Sample& sample);

// What a prompt may have so that the answer still fits: context - new tokens - kCutTokens.
int prompt_limit(int context_tokens, const Sample& sample);
// A context that is encoded apart from its question can have that much more tokens.
inline constexpr int kCutTokens = 2;

// Error when the prompt is longer than prompt_limit(); it starts with `where`.
Status check_fits(const Tokenizer& tokenizer, int context_tokens, const Sample& sample,
                  std::string_view where);

// The sample of most units (sentences, words, documents, ...) in least..most whose prompt is within
// prompt_limit(); `guess` is where the search starts and becomes the number found. More units must
// not make a prompt shorter, except for a few tokens. The search stops early when less than 1/256
// of the context is left over. Errors: not even `least` units fit; the tokenizer's.
struct FitRange {
  int least = 1;
  int most = 1;
};
Result<Sample> fit_sample(const Tokenizer& tokenizer, int context_tokens, FitRange range,
                          int& guess, const std::function<Sample(int)>& make);

}  // namespace qevict
