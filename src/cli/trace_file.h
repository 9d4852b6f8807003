// --trace FILE: one JSON line per routing event and layer, complete or not there at all.
//
// Lines go to FILE.partial, which takes its final name in finish(); a file that is not finished is
// removed. A device or pipe (/dev/stderr) is appended to directly.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "kv/kv_cache.h"
#include "qevict/result.h"

namespace qevict::cli {

class TraceFile {
 public:
  static Result<std::unique_ptr<TraceFile>> open(const std::string& path, bool with_scores);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  // Failures are kept for finish().
  void write(const LayerEvent& event);
  Status finish();

 private:
  TraceFile(std::string path, std::string written_path, std::FILE* file, bool with_scores);
  Error failure(const char* what, int error) const;

  std::string path_;
  std::string written_path_;  // path_ itself, or path_ + ".partial"
  std::FILE* file_;
  bool with_scores_;
  int error_ = 0;
};

}  // namespace qevict::cli
