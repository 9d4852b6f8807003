// For the tests of tasks: a small tokenizer, and folders of data made for a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "eval/fit.h"
#include "eval/task.h"
#include "eval/text.h"

namespace qevict {

// Words in pieces of up to five letters, a space before them included; all other bytes one by one,
// so that a character can be cut through.
class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(bool chat = true) : template_(chat ? "<user></user>" : "") {}

  Result<std::vector<TokenId>> encode(const std::string& text, bool add_special,
                                      bool) const override {
    std::vector<TokenId> tokens;
    if (add_special) tokens.push_back(id("<s>"));
    for (std::size_t at = 0; at < text.size();) {
      std::size_t check = at;
      if (next_code_point(text, check) == 0xFFFD && text.compare(at, 3, "\xEF\xBF\xBD") != 0 &&
          (at == 0 || !is_inner(text[at]))) {
        return bad_input("not UTF-8");
      }
      std::size_t end = at + 1;
      if (text[at] == ' ' || is_letter(text[at])) {
        while (end < text.size() && end - at < 5 && is_letter(text[end])) ++end;
      }
      tokens.push_back(id(text.substr(at, end - at)));
      at = end;
    }
    return tokens;
  }
  std::string piece(TokenId token, bool special) const override {
    const std::string& text = pieces_[static_cast<std::size_t>(token)];
    return text == "<s>" && !special ? "" : text;
  }
  std::string decode(std::span<const TokenId> tokens, bool special) const override {
    std::string text;
    for (const TokenId token : tokens) text += piece(token, special);
    return text;
  }
  bool is_eog(TokenId) const override { return false; }
  std::vector<TokenId> eog_tokens() const override { return {}; }
  TokenId bos() const override { return id("<s>"); }
  TokenId eos() const override { return -1; }
  int n_vocab() const override { return static_cast<int>(pieces_.size()); }
  bool has_chat_template() const override { return !template_.empty(); }
  const std::string& chat_template() const override { return template_; }
  Result<std::string> apply_chat_template(std::span<const ChatMessage> messages,
                                          bool) const override {
    return "<user>" + messages.front().content + "</user><assistant>";
  }

 private:
  static bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
  static bool is_inner(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
  TokenId id(const std::string& piece) const {
    const auto [at, is_new] = ids_.try_emplace(piece, static_cast<TokenId>(pieces_.size()));
    if (is_new) pieces_.push_back(piece);
    return at->second;
  }

  std::string template_;
  mutable std::map<std::string, TokenId> ids_;
  mutable std::vector<std::string> pieces_;
};

// A folder for one test, removed with the object.
class DataFolder {
 public:
  DataFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "qevict-tasks-XXXXXX").string();
    path_ = mkdtemp(name.data());
    // What this machine's cache has is no part of a test.
    setenv("QEVICT_CACHE", file("no-cache").c_str(), 1);
  }
  ~DataFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(file(name)).parent_path());
    std::ofstream(file(name), std::ios::binary) << text;
    return file(name);
  }
  TaskOptions options(int context_tokens, int samples) const {
    TaskOptions options;
    options.context_tokens = context_tokens;
    options.samples = samples;
    options.data_dir = path_;
    return options;
  }

 private:
  std::string path_;
};

inline std::vector<Sample> samples_of(const std::string& task, const TaskOptions& options,
                                      const Tokenizer& tokenizer = PieceTokenizer()) {
  const auto made = make_task(task);
  if (!made) {
    ADD_FAILURE() << made.error().message;
    return {};
  }
  auto samples = (*made)->samples(tokenizer, options);
  if (!samples) {
    ADD_FAILURE() << samples.error().message;
    return {};
  }
  return std::move(*samples);
}

inline std::string error_of(const std::string& task, const TaskOptions& options) {
  const auto made = make_task(task);
  if (!made) return made.error().message;
  const auto samples = (*made)->samples(PieceTokenizer(), options);
  return samples ? "no error" : samples.error().message;
}

// Prompt and answer together.
inline int total_tokens(const Sample& sample, const Tokenizer& tokenizer = PieceTokenizer()) {
  return count_prompt_tokens(tokenizer, sample).value_or(-1) + sample.max_new_tokens;
}

inline std::string whole_text(const Sample& sample) {
  return sample.context + sample.question + sample.answer_prefix;
}

inline int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace qevict
