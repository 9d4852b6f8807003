#include "cli/inputs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/signals.h"

namespace qevict::cli {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd, bool owned) : fd_(fd), owned_(owned) {}
  ~FileDescriptor() {
    if (owned_ && fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
  bool owned_;
};

std::string cannot_read(const std::string& where, int error) {
  return fmt::format("cannot read: {} ({}): check the path", std::strerror(error), where);
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  const bool from_stdin = path == "-";
  const std::string where = from_stdin ? "standard input" : path;
  const FileDescriptor file(from_stdin ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC),
                            !from_stdin);
  if (file.get() < 0) return bad_input(cannot_read(where.empty() ? "''" : where, errno));
  std::string text;
  std::vector<char> buffer(std::size_t{1} << 16);
  while (true) {
    const ssize_t n = read(file.get(), buffer.data(), buffer.size());
    if (n == 0) return text;
    if (n < 0) {
      if (errno == EINTR) {
        if (interrupted_by_user())
          return interrupted("interrupted while reading (" + where + "): run it again");
        continue;
      }
      return bad_input(cannot_read(where, errno));
    }
    text.append(buffer.data(), static_cast<std::size_t>(n));
    if (text.size() > kMaxFileBytes) {
      return bad_input(fmt::format("larger than 1 GiB ({}): give a shorter text", where));
    }
  }
}

Status check_utf8(const std::string& text, const std::string& where) {
  try {
    // The serialiser refuses invalid UTF-8 and says where.
    static_cast<void>(nlohmann::json(text).dump());
  } catch (const nlohmann::json::type_error& error) {
    // "[json.exception.type_error.316] invalid UTF-8 byte at index 1: 0xFF"
    std::string what = error.what();
    if (const std::size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    return bad_input(fmt::format("{} ({}): give the text in UTF-8", what, where));
  }
  return {};
}

Result<TokenList> read_token_list(const std::string& path) {
  const Result<std::string> text = read_text(path);
  if (!text) return std::unexpected(text.error());
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return bad_input(
        fmt::format("not JSON ({}): give an array of token ids such as [1, 2, 3]", path));
  }
  if (!json.is_array()) {
    return bad_input(fmt::format("not a JSON array but {} ({}): give token ids such as [1, 2, 3]",
                                 json.type_name(), path));
  }
  TokenList list{path, {}};
  list.ids.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_number_integer()) {
      return bad_input(
          fmt::format("not an integer token id ({}, index {}): give numbers only", path, i));
    }
    const bool huge = json[i].is_number_unsigned() && json[i].get<std::uint64_t>() > INT64_MAX;
    list.ids.push_back(huge ? INT64_MAX : json[i].get<std::int64_t>());
  }
  if (list.ids.empty()) {
    return bad_input(fmt::format("no token ids ({}): give at least one", path));
  }
  return list;
}

Result<std::vector<TokenId>> to_tokens(const TokenList& list, int n_vocab) {
  std::vector<TokenId> tokens;
  tokens.reserve(list.ids.size());
  for (std::size_t i = 0; i < list.ids.size(); ++i) {
    const std::int64_t id = list.ids[i];
    if (id < 0 || id >= n_vocab) {
      return bad_input(
          fmt::format("token id {} is outside the vocabulary ({}, index {}): use ids 0..{}", id,
                      list.path, i, n_vocab - 1));
    }
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

}  // namespace qevict::cli
