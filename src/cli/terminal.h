// What the program writes, and where: results on stdout, everything else on stderr.
//
// Colour and progress bars only where stderr is a terminal that knows them (NO_COLOR and TERM=dumb
// are respected). Thread safety: main thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "qevict/result.h"

namespace qevict::cli {

enum ExitCode : int { kOk = 0, kFailed = 1, kBadInput = 2, kInterrupted = 130 };

// Writes "qevict: error: MESSAGE" as one line and returns the exit code of the error's kind.
int report_error(const Error& error);

// A human's size: "12.3 MiB".
std::string format_bytes(std::int64_t bytes);
// "34.1 ms", "2.53 s".
std::string format_ms(double ms);

// stderr, unless --quiet.
class Console {
 public:
  explicit Console(bool quiet);
  void note(std::string_view line) const;
  void warn(std::string_view message) const;
  // The text in colour where that is wanted: "bold", "green", "yellow", "dim".
  std::string paint(std::string_view text, std::string_view style) const;
  bool shows_progress() const { return progress_; }
  bool quiet() const { return quiet_; }

 private:
  bool quiet_;
  bool progress_;
  bool colour_;
};

// One line that is rewritten in place; nothing at all where stderr is no terminal.
class ProgressBar {
 public:
  ProgressBar(const Console& console, std::string label);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void update(double fraction, std::string_view note = {});  // 0..1; the note stands behind it
  // A callback for GenerateOptions::prefill_progress; the bar goes with the last block.
  std::function<void(int done, int total)> block_counter();
  void clear();

 private:
  bool shown_;
  std::string label_;
  int last_percent_ = -1;
  std::string last_note_;
};

// stdout, unbuffered and patient with signals. After a failure further writes do nothing.
class Output {
 public:
  void write(std::string_view text);
  bool failed() const { return error_ != 0; }
  // Ok, or why stdout could not be written. A reader that has gone gives an empty message: the
  // program then stops quietly.
  Status status() const;

 private:
  int error_ = 0;  // errno of the failed write
};

}  // namespace qevict::cli
