#include "eval/result_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace qevict {
namespace {

// Closes what it holds.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::unexpected<Error> cannot_write(const std::string& path, int error) {
  return runtime_error(
      fmt::format("cannot write: {} ({}): choose a place with room", std::strerror(error), path));
}

// errno of the failure, or 0.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

// The lines that have an end, and how many bytes they are.
std::vector<std::string> whole_lines(const std::string& text, std::size_t& bytes) {
  std::vector<std::string> lines;
  bytes = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', bytes)) {
    lines.push_back(text.substr(bytes, end - bytes));
    bytes = end + 1;
  }
  return lines;
}

}  // namespace

Result<std::string> read_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (file.get() >= 0) {
    const ssize_t n = read(file.get(), buffer.data(), buffer.size());
    if (n == 0) return text;
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return bad_input(fmt::format("cannot read: {} ({}): check the path", std::strerror(errno), path));
}

Status write_file(const std::string& path, std::string_view text) {
  const std::string part = fmt::format("{}.{}.part", path, getpid());
  const Descriptor file(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) return cannot_write(path, errno);
  int error = write_all(file.get(), text);
  if (error == 0 && fsync(file.get()) != 0) error = errno;
  if (error == 0 && std::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  unlink(part.c_str());
  return cannot_write(path, error);
}

Status make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && access(path.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return {};
  return runtime_error(
      fmt::format("cannot write into the folder: {} ({}): choose another", error.message(), path));
}

Result<std::vector<std::string>> read_lines(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::vector<std::string>();
  const Result<std::string> text = read_file(path);
  if (!text) return std::unexpected(text.error());
  std::size_t bytes = 0;
  return whole_lines(*text, bytes);
}

Result<std::vector<CellResult>> parse_cells(std::span<const std::string> lines,
                                            const std::string& path) {
  std::vector<CellResult> cells;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    Result<CellResult> cell = parse_cell(lines[i], fmt::format("{}, line {}", path, i + 1));
    if (!cell) return std::unexpected(cell.error());
    cells.push_back(std::move(*cell));
  }
  return cells;
}

Result<LineFile> LineFile::open(const std::string& path, std::vector<std::string>& stored) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file.get() < 0) return cannot_write(path, errno);
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return runtime_error(
        fmt::format("another evaluation is writing there ({}): wait for it, or choose another "
                    "--out or --shard",
                    path));
  }
  // Read under the lock: nobody appends in between.
  const Result<std::string> text = read_file(path);
  if (!text) return std::unexpected(text.error());
  std::size_t bytes = 0;
  stored = whole_lines(*text, bytes);
  if (bytes < text->size() && ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return cannot_write(path, errno);
  }
  return LineFile(file.release(), path);
}

LineFile::LineFile(LineFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

LineFile::~LineFile() {
  if (fd_ >= 0) close(fd_);
}

Status LineFile::append(std::span<const std::string> lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  struct stat before = {};
  if (fstat(fd_, &before) != 0) return cannot_write(path_, errno);
  int error = write_all(fd_, text);
  if (error == 0 && fsync(fd_) != 0) error = errno;
  if (error == 0) return {};
  static_cast<void>(ftruncate(fd_, before.st_size));  // no room for the rest: drop a half line
  return cannot_write(path_, error);
}

}  // namespace qevict
