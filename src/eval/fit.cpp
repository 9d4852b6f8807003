#include "eval/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

namespace qevict {

namespace {

// Encoding takes seconds a megabyte at worst: longer texts are encoded only if they may fit.
constexpr std::size_t kSlowBytes = std::size_t{1} << 22;

// Bytes of the longest token.
std::size_t longest_piece(const Tokenizer& tokenizer) {
  std::size_t longest = 1;
  for (TokenId token = 0; token < tokenizer.n_vocab(); ++token) {
    longest = std::max(longest, tokenizer.piece(token, true).size());
  }
  return longest;
}

}  // namespace

Result<int> count_prompt_tokens(const Tokenizer& tokenizer, const Sample& sample) {
  std::string text = sample.context + sample.question;
  bool add_special = true;
  const bool chat = sample.chat && tokenizer.has_chat_template();
  if (chat) {
    const std::array<ChatMessage, 1> messages = {ChatMessage{"user", text}};
    Result<std::string> templated = tokenizer.apply_chat_template(messages, true);
    if (!templated) return std::unexpected(templated.error());
    text = std::move(*templated);
    const std::string bos = tokenizer.bos() >= 0 ? tokenizer.piece(tokenizer.bos(), true) : "";
    add_special = bos.empty() || !text.starts_with(bos);
  }
  const auto tokens = tokenizer.encode(text + sample.answer_prefix, add_special, chat);
  if (!tokens) return std::unexpected(tokens.error());
  return static_cast<int>(tokens->size());
}

int prompt_limit(int context_tokens, const Sample& sample) {
  return context_tokens - sample.max_new_tokens - kCutTokens;
}

Status check_fits(const Tokenizer& tokenizer, int context_tokens, const Sample& sample,
                  std::string_view where) {
  const std::size_t bytes = sample.context.size() + sample.question.size();
  const auto limit = static_cast<std::size_t>(std::max(prompt_limit(context_tokens, sample), 0));
  if (bytes > kSlowBytes && bytes / longest_piece(tokenizer) > limit) {
    return bad_input(fmt::format(
        "{}: the prompt has {} bytes, too many for {} tokens: give a longer --context, or shorten "
        "it",
        where, bytes, limit));
  }
  const Result<int> tokens = count_prompt_tokens(tokenizer, sample);
  if (!tokens) return std::unexpected(tokens.error());
  if (*tokens <= prompt_limit(context_tokens, sample)) return {};
  return bad_input(fmt::format(
      "{}: the prompt has {} tokens, and {} may be generated (context {}): give a longer "
      "--context, or shorten it",
      where, *tokens, sample.max_new_tokens, context_tokens));
}

Result<Sample> fit_sample(const Tokenizer& tokenizer, int context_tokens, FitRange range,
                          int& guess, const std::function<Sample(int)>& make) {
  const int slack = context_tokens / 256;
  range.most = std::max(range.least, range.most);
  int good = range.least - 1, bad = range.most + 1;  // the answer is in good .. bad - 1
  int n = std::clamp(guess, range.least, range.most);
  std::optional<Sample> best;
  for (int round = 0; bad - good > 1; ++round) {
    Sample sample = make(n);
    const Result<int> tokens = count_prompt_tokens(tokenizer, sample);
    if (!tokens) return std::unexpected(tokens.error());
    const int left = prompt_limit(context_tokens, sample) - *tokens;
    if (left < 0 && n == range.least) {
      return bad_input(fmt::format(
          "the shortest prompt has {} tokens, and {} may be generated (context {}): give a longer "
          "--context",
          *tokens, sample.max_new_tokens, context_tokens));
    }
    if (left >= 0) {
      good = n;
      best = std::move(sample);
      if (left <= slack) break;
    } else {
      bad = n;
    }
    // Where the rest ends at as many tokens a unit; halving makes sure of an end.
    const double per_unit = std::max(1.0, static_cast<double>(*tokens)) / std::max(n, 1);
    const int aimed = n + static_cast<int>(std::floor((left - slack / 2.0) / per_unit));
    n = round % 3 == 2 ? good + (bad - good) / 2 : aimed;
    n = std::clamp(n, good + 1, std::max(good + 1, bad - 1));
  }
  guess = std::max(good, range.least);
  return std::move(*best);
}

}  // namespace qevict
