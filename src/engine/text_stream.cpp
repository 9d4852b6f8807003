#include "engine/text_stream.h"

#include <algorithm>

namespace qevict {
namespace {

// Bytes of the sequence that starts with `lead`; 1 for a byte that starts none.
std::size_t sequence_length(unsigned char lead) {
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  return 1;
}

// Whether byte `at` of the sequence that starts at `begin` may continue it (no overlong forms, no
// surrogates, nothing above U+10FFFF).
bool is_continuation(const std::string& bytes, std::size_t begin, std::size_t at) {
  const auto lead = static_cast<unsigned char>(bytes[begin]);
  const auto byte = static_cast<unsigned char>(bytes[begin + at]);
  if ((byte & 0xc0) != 0x80) return false;
  if (at > 1) return true;
  return !(lead == 0xe0 && byte < 0xa0) && !(lead == 0xed && byte >= 0xa0) &&
         !(lead == 0xf0 && byte < 0x90) && !(lead == 0xf4 && byte >= 0x90);
}

// Length of the longest suffix of text that is a proper prefix of `stop`.
std::size_t overlap(const std::string& text, const std::string& stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.compare(text.size() - n, n, stop, 0, n) == 0) return n;
  }
  return 0;
}

}  // namespace

std::size_t complete_utf8_prefix(const std::string& bytes) {
  const std::size_t n = bytes.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, n); ++back) {
    const auto byte = static_cast<unsigned char>(bytes[n - back]);
    if ((byte & 0xc0) == 0x80) continue;  // continuation: look further back for the lead
    return sequence_length(byte) > back ? n - back : n;
  }
  return n;
}

std::string valid_utf8(const std::string& bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const std::size_t n = sequence_length(lead);
    const bool starts = n > 1 || lead < 0x80;
    std::size_t have = 1;
    while (have < n && i + have < bytes.size() && is_continuation(bytes, i, have)) ++have;
    if (starts && have == n) {
      out.append(bytes, i, n);
    } else {
      out += "\xEF\xBF\xBD";
    }
    i += have;
  }
  return out;
}

std::string TextStream::push(const std::string& bytes) {
  if (stopped_) return {};
  held_ += bytes;
  std::size_t cut = std::string::npos;
  for (const std::string& stop : stop_) {
    if (!stop.empty()) cut = std::min(cut, held_.find(stop));
  }
  std::string out;
  if (cut != std::string::npos) {
    stopped_ = true;
    out = held_.substr(0, cut);
    held_.clear();
  } else {
    std::size_t keep = held_.size() - complete_utf8_prefix(held_);
    for (const std::string& stop : stop_) {
      if (!stop.empty()) keep = std::max(keep, overlap(held_, stop));
    }
    // A stop string may begin inside a sequence only if its bytes do; whole sequences stay whole.
    std::string ready = held_.substr(0, held_.size() - keep);
    const std::size_t whole = complete_utf8_prefix(ready);
    out = ready.substr(0, whole);
    held_.erase(0, whole);
  }
  out = valid_utf8(out);
  text_ += out;
  return out;
}

std::string TextStream::finish() {
  const std::string out = valid_utf8(held_);
  held_.clear();
  text_ += out;
  return out;
}

}  // namespace qevict
