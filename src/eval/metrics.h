// The metrics of the tasks, each as its benchmark defines it. All scores are 0..1.
//
//   all, part        RULER's string_match_all and string_match_part
//   f1               LongBench's qa_f1_score
//   rouge_l          F of the Python package `rouge` 1.0.1 (what LongBench uses): its own
//                    definition on sets of words, sentences cut at full stops
//   classification   LongBench's
//   exact_number     GSM8K, the last number of the prediction; strict_number: the one in
//                    "The answer is X."
// Thread safety: free functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qevict {

// Share of the answers that the prediction contains, case-insensitive; part: any of them.
double string_match_all(std::string_view prediction, const std::vector<std::string>& answers);
double string_match_part(std::string_view prediction, const std::vector<std::string>& answers);

// Lower case, without ASCII punctuation and the articles, then F1 of the two bags of words.
double token_f1(std::string_view prediction, std::string_view answer);

// 0 when either has no sentence (the package raises there, and LongBench counts 0).
double rouge_l(std::string_view prediction, std::string_view answer);

// 1 / (classes that the prediction names) if the answer is among them; names that are part of the
// answer's do not count.
double classification(std::string_view prediction, std::string_view answer,
                      const std::vector<std::string>& classes);

// Numbers are compared by value, as text without "$", "," and what does not change it:
// "$1,234.50" -> "1234.5", "007" -> "7". None: no digit there.
std::optional<std::string> last_number(std::string_view text);
std::optional<std::string> stated_number(std::string_view text);  // the first "The answer is X"

}  // namespace qevict
