#include "eval/metrics.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "eval/task.h"
#include "eval/text.h"

namespace qevict {
namespace {

constexpr std::pair<Metric, const char*> kNames[] = {
    {Metric::All, "all"},
    {Metric::Part, "part"},
    {Metric::F1, "f1"},
    {Metric::RougeL, "rouge_l"},
    {Metric::Classification, "classification"},
    {Metric::ExactNumber, "exact_number"},
    {Metric::StrictNumber, "strict_number"},
};

bool is_ascii_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

// The bag of words that F1 compares.
std::map<std::string, int> normalised_words(std::string_view text, int& n_words) {
  std::string plain;
  for (const char c : to_lower(text)) {
    if (!is_ascii_punctuation(c)) plain.push_back(c);
  }
  std::string kept;  // articles replaced by a space
  for (std::size_t at = 0; at < plain.size();) {
    const std::size_t start = at;
    std::size_t end = at;
    while (end < plain.size() && is_word_character(next_code_point(plain, end))) at = end;
    if (at == start) next_code_point(plain, at);
    const std::string_view run = std::string_view(plain).substr(start, at - start);
    kept.append(run == "a" || run == "an" || run == "the" ? " " : run);
  }
  std::map<std::string, int> bag;
  const auto words = split_words(kept);
  for (const std::string_view word : words) ++bag[std::string(word)];
  n_words = static_cast<int>(words.size());
  return bag;
}

// Sentences as lists of word numbers: the text cut at full stops, each piece at single spaces. A
// piece of white space alone is a sentence of one empty word, as in the package.
using Sentence = std::vector<int>;
using WordNumbers = std::unordered_map<std::string, int>;

std::vector<Sentence> rouge_sentences(std::string_view text, WordNumbers& numbers) {
  const auto number = [&](std::string_view word) {
    return numbers.try_emplace(std::string(word), static_cast<int>(numbers.size())).first->second;
  };
  std::vector<Sentence> sentences;
  while (!text.empty()) {
    const std::size_t stop = std::min(text.find('.'), text.size());
    const std::string_view piece = text.substr(0, stop);
    text.remove_prefix(std::min(stop + 1, text.size()));
    if (piece.empty()) continue;
    Sentence sentence;
    for (const std::string_view word : split_words(piece)) sentence.push_back(number(word));
    if (sentence.empty()) sentence.push_back(number(""));
    sentences.push_back(std::move(sentence));
  }
  return sentences;
}

// Marks the words of a longest common subsequence; of several the one that the package picks.
void mark_common(const Sentence& x, const Sentence& y, std::vector<bool>& marked) {
  const std::size_t n = x.size(), m = y.size(), width = m + 1;
  std::vector<int> length((n + 1) * width, 0);  // [n + 1, m + 1]
  for (std::size_t i = 1; i <= n; ++i) {
    for (std::size_t j = 1; j <= m; ++j) {
      length[i * width + j] =
          x[i - 1] == y[j - 1] ? length[(i - 1) * width + j - 1] + 1
                               : std::max(length[(i - 1) * width + j], length[i * width + j - 1]);
    }
  }
  for (std::size_t i = n, j = m; i > 0 && j > 0;) {
    if (x[i - 1] == y[j - 1]) {
      marked[static_cast<std::size_t>(x[i - 1])] = true;
      --i;
      --j;
    } else if (length[(i - 1) * width + j] > length[i * width + j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

int count_distinct(const std::vector<Sentence>& sentences, std::size_t n_words) {
  std::vector<bool> seen(n_words, false);
  for (const Sentence& sentence : sentences) {
    for (const int word : sentence) seen[static_cast<std::size_t>(word)] = true;
  }
  return static_cast<int>(std::count(seen.begin(), seen.end(), true));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "-$1,234.50" -> "-1234.5".
std::string canonical_number(std::string_view text) {
  std::string digits;
  for (const char c : text) {
    if (is_digit(c) || c == '.') digits.push_back(c);
  }
  if (digits.find('.') != std::string::npos) {
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.ends_with('.')) digits.pop_back();
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty() || digits.front() == '.') digits.insert(0, "0");
  return text.starts_with('-') && digits != "0" ? "-" + digits : digits;
}

// The number that starts at or after `from`: sign, "$", digits, "," between digits, one fraction.
std::optional<std::string> number_from(std::string_view text, std::size_t& from) {
  std::size_t first = from;
  while (first < text.size() && !is_digit(text[first])) ++first;
  if (first == text.size()) return std::nullopt;
  std::size_t end = first;
  bool fraction = false;
  const auto digit_at = [&](std::size_t i) { return i < text.size() && is_digit(text[i]); };
  while (digit_at(end) ||
         (digit_at(end + 1) && !fraction && (text[end] == ',' || text[end] == '.'))) {
    fraction = fraction || text[end] == '.';
    ++end;
  }
  std::size_t start = first;
  if (start > from && text[start - 1] == '.') --start;  // ".5"
  if (start > from && text[start - 1] == '$') --start;
  if (start > from && text[start - 1] == '-') --start;
  from = end;
  return canonical_number(text.substr(start, end - start));
}

double number_score(const std::optional<std::string>& found,
                    const std::vector<std::string>& answers) {
  const bool right = found && std::any_of(answers.begin(), answers.end(), [&](const auto& answer) {
                       return last_number(answer) == found;
                     });
  return right ? 1.0 : 0.0;
}

template <typename Score>
double best_over(const std::vector<std::string>& answers, const Score& score) {
  double best = 0.0;
  for (const std::string& answer : answers) best = std::max(best, score(answer));
  return best;
}

}  // namespace

Result<Metric> parse_metric(std::string_view name) {
  std::string known;
  for (const auto& [metric, text] : kNames) {
    if (name == text) return metric;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  return bad_input("unknown metric '" + std::string(name) + "' (known: " + known +
                   "): use one of them");
}

const char* to_string(Metric metric) {
  for (const auto& [known, text] : kNames) {
    if (known == metric) return text;
  }
  return "?";
}

double string_match_all(std::string_view prediction, const std::vector<std::string>& answers) {
  if (answers.empty()) return 0.0;
  const std::string text = to_lower(prediction);
  const auto found = std::count_if(answers.begin(), answers.end(), [&](const std::string& answer) {
    return text.find(to_lower(answer)) != std::string::npos;
  });
  return static_cast<double>(found) / static_cast<double>(answers.size());
}

double string_match_part(std::string_view prediction, const std::vector<std::string>& answers) {
  return string_match_all(prediction, answers) > 0.0 ? 1.0 : 0.0;
}

double token_f1(std::string_view prediction, std::string_view answer) {
  int n_prediction = 0, n_answer = 0;
  const auto words = normalised_words(prediction, n_prediction);
  int same = 0;
  for (const auto& [word, count] : normalised_words(answer, n_answer)) {
    const auto found = words.find(word);
    if (found != words.end()) same += std::min(count, found->second);
  }
  if (same == 0) return 0.0;
  const double precision = static_cast<double>(same) / n_prediction;
  const double recall = static_cast<double>(same) / n_answer;
  return 2.0 * precision * recall / (precision + recall);
}

double rouge_l(std::string_view prediction, std::string_view answer) {
  WordNumbers numbers;
  const std::vector<Sentence> hypothesis = rouge_sentences(prediction, numbers);
  const std::vector<Sentence> reference = rouge_sentences(answer, numbers);
  if (hypothesis.empty() || reference.empty()) return 0.0;
  std::vector<bool> common(numbers.size(), false);
  for (const Sentence& r : reference) {
    for (const Sentence& h : hypothesis) mark_common(r, h, common);
  }
  const auto n_common = static_cast<double>(std::count(common.begin(), common.end(), true));
  const double recall = n_common / count_distinct(reference, numbers.size());
  const double precision = n_common / count_distinct(hypothesis, numbers.size());
  return 2.0 * (precision * recall / (precision + recall + 1e-8));
}

double classification(std::string_view prediction, std::string_view answer,
                      const std::vector<std::string>& classes) {
  int named = 0;
  bool right = false;
  for (const std::string& name : classes) {
    if (prediction.find(name) == std::string_view::npos) continue;
    if (name != answer && answer.find(name) != std::string_view::npos) continue;
    ++named;
    right = right || name == answer;
  }
  return right ? 1.0 / named : 0.0;
}

std::optional<std::string> last_number(std::string_view text) {
  std::optional<std::string> last;
  std::size_t from = 0;
  while (auto number = number_from(text, from)) last = std::move(number);
  return last;
}

std::optional<std::string> stated_number(std::string_view text) {
  constexpr std::string_view kPhrase = "The answer is ";
  for (std::size_t at = text.find(kPhrase); at != std::string_view::npos;
       at = text.find(kPhrase, at + 1)) {
    std::size_t from = at + kPhrase.size();
    const std::size_t digit = from + (text.substr(from).starts_with('-') ? 1 : 0);
    if (digit < text.size() && is_digit(text[digit])) return number_from(text, from);
  }
  return std::nullopt;
}

double score(const Sample& sample, std::string_view prediction) {
  if (sample.first_line_only) {
    prediction.remove_prefix(std::min(prediction.find_first_not_of('\n'), prediction.size()));
    prediction = prediction.substr(0, prediction.find('\n'));
  }
  const std::vector<std::string>& answers = sample.answers;
  switch (sample.metric) {
    case Metric::All:
      return string_match_all(prediction, answers);
    case Metric::Part:
      return string_match_part(prediction, answers);
    case Metric::F1:
      return best_over(answers, [&](const auto& a) { return token_f1(prediction, a); });
    case Metric::RougeL:
      return best_over(answers, [&](const auto& a) { return rouge_l(prediction, a); });
    case Metric::Classification:
      return best_over(
          answers, [&](const auto& a) { return classification(prediction, a, sample.classes); });
    case Metric::ExactNumber:
      return number_score(last_number(prediction), answers);
    case Metric::StrictNumber:
      return number_score(stated_number(prediction), answers);
  }
  return 0.0;
}

}  // namespace qevict
