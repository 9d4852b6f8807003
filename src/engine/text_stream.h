// Turns generated tokens into text: complete UTF-8 only, nothing that may still become a stop
// string.
#pragma once

#include <string>
#include <vector>

namespace qevict {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stop) : stop_(std::move(stop)) {}
  // Adds a token's bytes; returns what is now certain to be part of the text.
  std::string push(const std::string& bytes);
  // What was held back, at the end (incomplete UTF-8 becomes U+FFFD).
  std::string finish();
  bool stopped() const { return stopped_; }          // a stop string has been met
  const std::string& text() const { return text_; }  // everything returned so far

 private:
  std::vector<std::string> stop_;
  std::string held_;
  std::string text_;
  bool stopped_ = false;
};

// Length of the longest prefix of `bytes` that ends on a complete UTF-8 sequence (or on bytes that
// can never become one).
std::size_t complete_utf8_prefix(const std::string& bytes);

// `bytes` with every maximal invalid part replaced by U+FFFD.
std::string valid_utf8(const std::string& bytes);

}  // namespace qevict
