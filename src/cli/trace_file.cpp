#include "cli/trace_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/json_report.h"

namespace qevict::cli {

TraceFile::TraceFile(std::string path, std::string written_path, std::FILE* file, bool with_scores)
    : path_(std::move(path)),
      written_path_(std::move(written_path)),
      file_(file),
      with_scores_(with_scores) {}

Result<std::unique_ptr<TraceFile>> TraceFile::open(const std::string& path, bool with_scores) {
  const auto refuse = [&](int error) {
    return runtime_error(fmt::format("cannot write: {} ({}): choose another --trace file",
                                     std::strerror(error), path));
  };
  if (path.empty()) return bad_input("the path is empty (--trace): give a file");
  struct stat info = {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return refuse(EISDIR);
  if (exists && access(path.c_str(), W_OK) != 0) return refuse(errno);
  // What is no plain file must not be replaced; nor what stands behind /dev/stderr.
  const bool special = path.starts_with("/dev/") || path.starts_with("/proc/");
  const bool direct = special || (exists && !S_ISREG(info.st_mode));
  // A link stays a link: the file behind it is replaced.
  std::error_code unresolved;
  std::string target = path;
  if (!direct) {
    // The file behind a link need not exist yet, so the link is followed by hand.
    namespace fs = std::filesystem;
    for (int i = 0; i < 16 && fs::is_symlink(target, unresolved); ++i) {
      const fs::path behind = fs::read_symlink(target, unresolved);
      if (!unresolved) target = (fs::path(target).parent_path() / behind).string();
    }
    unresolved.clear();
  }
  if (unresolved) return refuse(unresolved.value());
  std::string written = direct ? target : target + ".partial";
  std::FILE* file = std::fopen(written.c_str(), direct ? "ae" : "we");
  if (file == nullptr) return refuse(errno);
  return std::unique_ptr<TraceFile>(
      new TraceFile(std::move(target), std::move(written), file, with_scores));
}

TraceFile::~TraceFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (written_path_ != path_) unlink(written_path_.c_str());
}

Error TraceFile::failure(const char* what, int error) const {
  return {
      ErrorCode::Runtime,
      fmt::format("cannot {} the trace: {} ({}): free some space or choose another --trace file",
                  what, std::strerror(error), path_)};
}

void TraceFile::write(const LayerEvent& event) {
  if (error_ != 0) return;
  const std::string line = dump_json(trace_json(event, with_scores_)) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size()) {
    error_ = errno != 0 ? errno : EIO;
    return;
  }
}

Status TraceFile::finish() {
  if (std::fflush(file_) != 0 && error_ == 0) error_ = errno;
  const bool replaces = written_path_ != path_;
  if (replaces && error_ == 0 && fsync(fileno(file_)) != 0) error_ = errno;
  if (std::fclose(file_) != 0 && error_ == 0) error_ = errno;
  file_ = nullptr;
  if (error_ == 0 && replaces && std::rename(written_path_.c_str(), path_.c_str()) != 0) {
    error_ = errno;
  }
  if (error_ == 0) return {};
  if (replaces) unlink(written_path_.c_str());
  return std::unexpected(failure("write", error_));
}

}  // namespace qevict::cli
