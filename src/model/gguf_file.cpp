#include "model/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "model/gguf_parser.h"

namespace qevict {
namespace {

constexpr std::size_t kPage = 4096;

struct FileDescriptor {
  int fd = -1;
  ~FileDescriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string errno_text() { return std::strerror(errno); }

Status read_all(int fd, std::byte* out, std::size_t size, const std::string& path) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd, out + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return runtime_error("reading failed: " + errno_text() + " (" + path + "): check the disk");
    if (n == 0)
      return runtime_error("the file became shorter while it was read (" + path + "): try again");
    done += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace

const char* to_string(GgufType type) {
  switch (type) {
    case GgufType::Uint8:
      return "uint8";
    case GgufType::Int8:
      return "int8";
    case GgufType::Uint16:
      return "uint16";
    case GgufType::Int16:
      return "int16";
    case GgufType::Uint32:
      return "uint32";
    case GgufType::Int32:
      return "int32";
    case GgufType::Float32:
      return "float32";
    case GgufType::Bool:
      return "bool";
    case GgufType::String:
      return "string";
    case GgufType::Array:
      return "array";
    case GgufType::Uint64:
      return "uint64";
    case GgufType::Int64:
      return "int64";
    case GgufType::Float64:
      return "float64";
  }
  return "unknown";
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kMax = 64;
  std::string out = "\"";
  for (char c : text.substr(0, kMax)) out += (c >= ' ' && c < 127 && c != '"') ? c : '?';
  if (text.size() > kMax) out += "...";
  return out + "\"";
}

Result<GgufFile> GgufFile::open(const std::string& path, bool use_mmap) {
  FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) {
    return bad_input("cannot open the model: " + errno_text() + " (" + path + "): check the path");
  }
  struct stat info{};
  if (::fstat(file.fd, &info) != 0) {
    return bad_input("cannot examine the model: " + errno_text() + " (" + path +
                     "): check the path");
  }
  if (!S_ISREG(info.st_mode)) {
    return bad_input("not a regular file (" + path + "): give the path of a .gguf file");
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return bad_input("the file is empty (" + path + "): download it again");

  // Held by an object from here on, so that every return releases it.
  GgufFile held;
  held.owned_ = true;
  held.mapped_ = use_mmap;
  if (use_mmap) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
    if (address == MAP_FAILED) {
      return runtime_error("cannot map the model: " + errno_text() + " (" + path +
                           "): free memory or load without mmap");
    }
    held.data_ = {static_cast<const std::byte*>(address), size};
  } else {
    auto* memory =
        static_cast<std::byte*>(std::aligned_alloc(kPage, (size + kPage - 1) / kPage * kPage));
    if (memory == nullptr) {
      return runtime_error("no memory for " + std::to_string(size) + " bytes (" + path +
                           "): load with mmap or use a smaller model");
    }
    held.data_ = {memory, size};
    if (Status read = read_all(file.fd, memory, size, path); !read) {
      return std::unexpected(read.error());
    }
  }
  Result<GgufFile> parsed = parse(held.data_, path);
  if (!parsed) return parsed;
  parsed->owned_ = std::exchange(held.owned_, false);
  parsed->mapped_ = held.mapped_;
  return parsed;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> data, const std::string& path) {
  GgufFile file;
  file.path_ = path;
  file.data_ = data;
  if (Status status = GgufParser(file).run(); !status) return std::unexpected(status.error());
  return file;
}

GgufFile::GgufFile(GgufFile&& other) noexcept { *this = std::move(other); }

GgufFile& GgufFile::operator=(GgufFile&& other) noexcept {
  if (this == &other) return *this;
  release();
  path_ = std::move(other.path_);
  data_ = std::exchange(other.data_, {});
  mapped_ = other.mapped_;
  owned_ = std::exchange(other.owned_, false);
  version_ = other.version_;
  keys_ = std::move(other.keys_);
  values_ = std::move(other.values_);
  tensors_ = std::move(other.tensors_);
  tensor_index_ = std::move(other.tensor_index_);
  return *this;
}

GgufFile::~GgufFile() { release(); }

void GgufFile::release() noexcept {
  if (!owned_) return;
  auto* address = const_cast<std::byte*>(data_.data());
  if (mapped_) {
    ::munmap(address, data_.size());
  } else {
    std::free(address);
  }
  owned_ = false;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(std::string(name));
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = values_.find(std::string(key));
  return it == values_.end() ? nullptr : &it->second;
}

std::unexpected<Error> GgufFile::error(const std::string& what, const std::string& advice) const {
  return bad_input(
      what + " (" + path_ +
      "): " + (advice.empty() ? "download the file again or convert the model again" : advice));
}

}  // namespace qevict
