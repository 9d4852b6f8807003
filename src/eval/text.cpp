#include "eval/text.h"

#include <array>

namespace qevict {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

void append_code_point(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool in(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

// Latin blocks beyond Latin-1: capital and small letter stand side by side.
char32_t lower_extended_latin(char32_t c) {
  if (c == 0x178) return 0xFF;
  if (c == 0x1E9E) return 0xDF;
  if (c == 0x130 || in(c, 0x1E96, 0x1E9F)) return c;
  const bool capital_is_odd = in(c, 0x139, 0x148) || in(c, 0x179, 0x17E);
  return (c % 2 == 1) == capital_is_odd ? c + 1 : c;
}

char32_t lower_greek(char32_t c) {
  if (in(c, 0x391, 0x3A1) || in(c, 0x3A3, 0x3AB)) return c + 0x20;
  if (c == 0x386) return 0x3AC;
  if (in(c, 0x388, 0x38A)) return c + 37;
  if (c == 0x38C) return 0x3CC;
  return in(c, 0x38E, 0x38F) ? c + 63 : c;
}

char32_t lower(char32_t c) {
  if (c < 0x80) return in(c, 'A', 'Z') ? c + 0x20 : c;
  if (c < 0x100) return in(c, 0xC0, 0xDE) && c != 0xD7 ? c + 0x20 : c;
  if (in(c, 0x100, 0x137) || in(c, 0x139, 0x148) || in(c, 0x14A, 0x17E) || in(c, 0x1E00, 0x1EFF)) {
    return lower_extended_latin(c);
  }
  if (in(c, 0x386, 0x3AB)) return lower_greek(c);
  if (in(c, 0x400, 0x40F)) return c + 0x50;
  return in(c, 0x410, 0x42F) ? c + 0x20 : c;
}

// Latin-1's letters and digits among its symbols.
bool is_latin1_word(char32_t c) {
  constexpr std::array<char32_t, 8> kOthers = {0xAA, 0xB2, 0xB3, 0xB5, 0xB9, 0xBA, 0xBC, 0xBD};
  for (const char32_t other : kOthers) {
    if (c == other) return true;
  }
  return c == 0xBE || (c >= 0xC0 && c != 0xD7 && c != 0xF7);
}

}  // namespace

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at++);
  if (lead < 0x80) return lead;
  const int n_more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC2 ? 1 : 0;
  if (n_more == 0 || lead > 0xF4 || at + static_cast<std::size_t>(n_more) > text.size()) {
    return kReplacement;
  }
  char32_t c = lead & (0x3F >> n_more);
  for (int i = 0; i < n_more; ++i) {
    const unsigned char next = byte(at + static_cast<std::size_t>(i));
    if ((next & 0xC0) != 0x80) return kReplacement;
    c = (c << 6) | (next & 0x3F);
  }
  at += static_cast<std::size_t>(n_more);
  return c;
}

bool is_space(char32_t c) {
  if (c < 0x80) return in(c, 0x09, 0x0D) || in(c, 0x1C, 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || in(c, 0x2000, 0x200A) || in(c, 0x2028, 0x2029) ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) {
  if (c < 0x80) return in(c, '0', '9') || in(c, 'A', 'Z') || in(c, 'a', 'z') || c == '_';
  if (c < 0x100) return is_latin1_word(c);
  // Punctuation, arrows, mathematics, box drawing; CJK punctuation; private use and specials.
  const bool symbol = in(c, 0x2000, 0x206F) || in(c, 0x20A0, 0x20CF) || in(c, 0x2190, 0x245F) ||
                      in(c, 0x2500, 0x2BFF) || in(c, 0x3000, 0x3004) || in(c, 0x3008, 0x3020) ||
                      in(c, 0xE000, 0xF8FF) || in(c, 0xFF01, 0xFF0F) || in(c, 0xFFE0, 0xFFFF) ||
                      in(c, 0x1F000, 0x1FAFF);
  return !symbol;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    const char32_t small = lower(c);
    if (small == c) {
      out.append(text.substr(start, at - start));
    } else {
      append_code_point(out, small);
    }
  }
  return out;
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  std::size_t start = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    if (!is_space(next_code_point(text, at))) continue;
    if (here > start) words.push_back(text.substr(start, here - start));
    start = at;
  }
  if (start < text.size()) words.push_back(text.substr(start));
  return words;
}

std::string join_words(const std::vector<std::string_view>& words) {
  std::string joined;
  for (const std::string_view word : words) {
    if (!joined.empty()) joined.push_back(' ');
    joined.append(word);
  }
  return joined;
}

std::string_view trim(std::string_view text) {
  std::size_t first = std::string_view::npos, last = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    if (is_space(next_code_point(text, at))) continue;
    if (first == std::string_view::npos) first = start;
    last = at;
  }
  return first == std::string_view::npos ? std::string_view() : text.substr(first, last - first);
}

}  // namespace qevict
