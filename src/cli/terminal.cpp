#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace qevict::cli {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool capable_terminal() {
  if (isatty(STDERR_FILENO) == 0) return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

// Writes all of `text`; errno of the failure, or 0.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return errno;
    }
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

// Keeps a message on one line, whatever a file name or a library put into it.
std::string one_line(std::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return out;
}

void write_stderr(const std::string& line) { write_all(STDERR_FILENO, line + "\n"); }

std::string styled(std::string_view text, std::string_view style) {
  const char* code = style == "red"      ? "31;1"
                     : style == "yellow" ? "33"
                     : style == "green"  ? "32;1"
                     : style == "dim"    ? "2"
                                         : "1";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

}  // namespace

int report_error(const Error& error) {
  const bool colour = capable_terminal() && !is_set("NO_COLOR");
  int code = kFailed;
  switch (error.code) {
    case ErrorCode::BadInput:
      code = kBadInput;
      break;
    case ErrorCode::Runtime:
      code = kFailed;
      break;
    case ErrorCode::Interrupted:
      code = kInterrupted;
      break;
  }
  if (error.message.empty()) return code;
  write_stderr("qevict: " + (colour ? styled("error:", "red") : std::string("error:")) + " " +
               one_line(error.message));
  return code;
}

std::string format_bytes(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024.0 && unit < 4) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_ms(double ms) {
  return ms < 1000.0 ? fmt::format("{:.1f} ms", ms) : fmt::format("{:.2f} s", ms / 1000.0);
}

Console::Console(bool quiet)
    : quiet_(quiet),
      progress_(!quiet && capable_terminal()),
      colour_(capable_terminal() && !is_set("NO_COLOR")) {}

void Console::note(std::string_view line) const {
  if (!quiet_) write_stderr(std::string(line));
}

void Console::warn(std::string_view message) const {
  note("qevict: " + paint("warning:", "yellow") + " " + one_line(message));
}

std::string Console::paint(std::string_view text, std::string_view style) const {
  return colour_ ? styled(text, style) : std::string(text);
}

ProgressBar::ProgressBar(const Console& console, std::string label)
    : shown_(console.shows_progress()), label_(std::move(label)) {}

void ProgressBar::update(double fraction, std::string_view note) {
  if (!shown_) return;
  const int percent = static_cast<int>(100.0 * std::clamp(fraction, 0.0, 1.0));
  if (percent == last_percent_ && note == last_note_) return;
  last_percent_ = percent;
  last_note_ = note;
  constexpr int kWidth = 30;
  const int filled = kWidth * percent / 100;
  write_all(STDERR_FILENO,
            fmt::format("\r{} [{}{}] {:3d}%{}\x1b[K", label_, std::string(filled, '#'),
                        std::string(kWidth - filled, ' '), percent, note));
}

std::function<void(int, int)> ProgressBar::block_counter() {
  return [this](int done, int total) {
    update(static_cast<double>(done) / total);
    if (done == total) clear();
  };
}

void ProgressBar::clear() {
  if (last_percent_ >= 0) write_all(STDERR_FILENO, "\r\x1b[K");
  last_percent_ = -1;
}

void Output::write(std::string_view text) {
  if (error_ == 0) error_ = write_all(STDOUT_FILENO, text);
}

Status Output::status() const {
  if (error_ == 0) return {};
  if (error_ == EPIPE) return runtime_error("");
  return runtime_error(
      fmt::format("cannot write the result: {} (standard output): write to a place with room",
                  std::strerror(error_)));
}

}  // namespace qevict::cli
