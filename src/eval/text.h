// Words of UTF-8 text as the reference metrics (Python) see them.
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace qevict {

// Reads the code point at `at` and moves behind it; a byte that starts none is U+FFFD.
char32_t next_code_point(std::string_view text, std::size_t& at);

// Python's str.isspace() and, near enough, re's \w: letters, digits, underscore.
bool is_space(char32_t c);
bool is_word_character(char32_t c);

// Latin, Greek and Cyrillic; other scripts stay as they are.
std::string to_lower(std::string_view text);

// Python's str.split(): pieces between white space, none of them empty. They point into `text`.
std::vector<std::string_view> split_words(std::string_view text);

// "a b  c" -> "a b c": words joined by one space.
std::string join_words(const std::vector<std::string_view>& words);

// Without white space at both ends.
std::string_view trim(std::string_view text);

}  // namespace qevict
