#include "eval/recall_model.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

// QEVICT_RECALL_MODEL: the file's path at build time.
asm(".pushsection .rodata\n"
    ".balign 64\n"
    ".hidden qevict_recall_model_begin\n"
    ".globl qevict_recall_model_begin\n"
    "qevict_recall_model_begin:\n"
    ".incbin \"" QEVICT_RECALL_MODEL
    "\"\n"
    ".hidden qevict_recall_model_end\n"
    ".globl qevict_recall_model_end\n"
    "qevict_recall_model_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
extern const std::byte qevict_recall_model_begin[];
extern const std::byte qevict_recall_model_end[];
}

namespace qevict {
namespace {

// Writes all of `bytes`; errno of the failure, or 0.
int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return 0;
}

}  // namespace

std::span<const std::byte> recall_model_bytes() {
  return {qevict_recall_model_begin, qevict_recall_model_end};
}

Result<RecallModelFile> RecallModelFile::create() {
  std::error_code no_folder;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(no_folder);
  RecallModelFile file;
  std::string pattern = (folder / "qevict-recall-XXXXXX").string();
  const int fd = no_folder ? -1 : mkstemp(pattern.data());
  int error = fd < 0 ? errno : 0;
  if (fd >= 0) {
    file.path_ = pattern;
    error = write_all(fd, recall_model_bytes());
    if (close(fd) != 0 && error == 0) error = errno;
  }
  if (no_folder || error != 0) {
    return runtime_error("cannot write the recall model: " +
                         (no_folder ? no_folder.message() : std::strerror(error)) +
                         " (temporary folder): let TMPDIR name a folder with 1 MiB of room");
  }
  return file;
}

RecallModelFile::RecallModelFile(RecallModelFile&& other) noexcept
    : path_(std::exchange(other.path_, "")) {}

RecallModelFile::~RecallModelFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

}  // namespace qevict
