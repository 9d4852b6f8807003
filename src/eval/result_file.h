// The files of an evaluation: lines that survive a killed process, and files that are whole or not
// there.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/cell.h"
#include "qevict/result.h"

namespace qevict {

// The whole of a file. BadInput when it cannot be read.
Result<std::string> read_file(const std::string& path);

// Writes beside `path` and renames, so that nobody sees a part of it.
Status write_file(const std::string& path, std::string_view text);

// Creates the folder and those above it. The error says why nothing can be written there.
Status make_folder(const std::string& path);

// The lines of a file, without their ends. A last line without its newline was being written when
// the program was killed, and is left out. A file that does not exist has none.
Result<std::vector<std::string>> read_lines(const std::string& path);

// The lines of `path` as cells; the error names the line.
Result<std::vector<CellResult>> parse_cells(std::span<const std::string> lines,
                                            const std::string& path);

// Appends lines to a file. One writer at a time: a second one is refused.
class LineFile {
 public:
  // `stored` gets the lines that are there already; a half line behind them is removed.
  static Result<LineFile> open(const std::string& path, std::vector<std::string>& stored);
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&&) = delete;
  ~LineFile();
  // All lines with one write, then to the disk: a kill leaves all of them or, where the system
  // splits the write, whole lines and at most one half line. What cannot be written leaves the
  // file as it was.
  Status append(std::span<const std::string> lines);
  const std::string& path() const { return path_; }

 private:
  LineFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

}  // namespace qevict
