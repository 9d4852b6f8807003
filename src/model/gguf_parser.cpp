#include "model/gguf_parser.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ggml.h"

namespace qevict {
namespace {

// Far above any real model, low enough that a hostile header cannot make us allocate much.
constexpr std::uint64_t kMaxValues = 65536;
constexpr std::uint64_t kMaxTensors = 1 << 18;
constexpr std::uint64_t kMaxKeyLength = 65535;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::uint64_t kGgmlAlignment = 32;  // ggml's kernels read whole vectors

// Bytes of one element; 0 for strings and arrays.
std::uint64_t scalar_size(GgufType type) {
  switch (type) {
    case GgufType::Uint8:
    case GgufType::Int8:
    case GgufType::Bool:
      return 1;
    case GgufType::Uint16:
    case GgufType::Int16:
      return 2;
    case GgufType::Uint32:
    case GgufType::Int32:
    case GgufType::Float32:
      return 4;
    case GgufType::Uint64:
    case GgufType::Int64:
    case GgufType::Float64:
      return 8;
    case GgufType::String:
    case GgufType::Array:
      return 0;
  }
  return 0;
}

bool known(std::uint32_t type) { return type <= static_cast<std::uint32_t>(GgufType::Float64); }

std::string number(std::uint64_t n) { return std::to_string(n); }

}  // namespace

Status GgufParser::run() {
  if (read_header() && read_values() && read_alignment() && read_tensors() && place_tensors()) {
    check_overlap();
  }
  return status_;
}

bool GgufParser::fail(const std::string& what, const std::string& advice) {
  if (status_) status_ = file_.error(what, advice);
  return false;
}

bool GgufParser::skip(std::uint64_t n) {
  if (n > left()) {
    return fail("the file ends inside " + where_ + ": " + number(n) + " bytes at offset " +
                    number(position_) + " wanted, " + number(left()) + " there, so at least " +
                    number(n - left()) + " bytes are missing",
                "the download is incomplete or the file is damaged; download it again");
  }
  position_ += n;
  return true;
}

template <typename T>
bool GgufParser::read(T& value) {
  const std::uint64_t at = position_;
  if (!skip(sizeof(T))) return false;
  std::memcpy(&value, file_.data_.data() + at, sizeof(T));
  return true;
}

bool GgufParser::read_text(std::string_view& text) {
  std::uint64_t length = 0;
  if (!read(length)) return false;
  const std::uint64_t at = position_;
  if (!skip(length)) return false;
  text = {reinterpret_cast<const char*>(file_.data_.data() + at), static_cast<std::size_t>(length)};
  return true;
}

bool GgufParser::read_header() {
  where_ = "the header";
  char magic[4];
  if (!read(magic)) return false;
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    const bool pointer = std::memcmp(magic, "vers", 4) == 0;
    return fail("not a GGUF file: it starts with " + quoted({magic, 4}) + ", not \"GGUF\"",
                pointer ? "it looks like a Git LFS pointer; fetch the real file with git lfs pull"
                        : "give the path of a .gguf file");
  }
  std::uint32_t version = 0;
  if (!read(version)) return false;
  if (version != 2 && version != 3) {
    const bool swapped = version != 0 && (version & 0xFFFF) == 0;
    return fail(
        "GGUF version " + number(version) + " is not supported; versions 2 and 3 are",
        swapped ? "the file is big-endian; convert the model for little-endian machines" : "");
  }
  file_.version_ = static_cast<int>(version);
  if (!read(n_tensors_) || !read(n_values_)) return false;
  if (n_tensors_ == 0 || n_tensors_ > kMaxTensors) {
    return fail("the header announces " + number(n_tensors_) + " tensors; 1 to " +
                number(kMaxTensors) + " are possible");
  }
  if (n_values_ > kMaxValues) {
    return fail("the header announces " + number(n_values_) + " metadata keys; at most " +
                number(kMaxValues) + " are possible");
  }
  return true;
}

bool GgufParser::read_values() {
  for (std::uint64_t i = 0; i < n_values_; ++i) {
    where_ = "metadata key " + number(i + 1) + " of " + number(n_values_);
    std::string_view name;
    if (!read_text(name)) return false;
    if (name.empty() || name.size() > kMaxKeyLength) {
      return fail(where_ + " has a name of " + number(name.size()) + " bytes; 1 to " +
                  number(kMaxKeyLength) + " are allowed");
    }
    const std::string key(name);
    if (file_.values_.contains(key)) return fail("metadata key " + quoted(key) + " appears twice");
    where_ = "metadata key " + quoted(key);
    if (!read_value(key)) return false;
  }
  return true;
}

bool GgufParser::read_value(const std::string& key) {
  std::uint32_t type = 0;
  if (!read(type)) return false;
  if (!known(type)) return fail(where_ + " has the unknown type " + number(type));
  GgufValue value;
  value.type = value.element = static_cast<GgufType>(type);
  value.count = 1;
  if (value.type == GgufType::Array) {
    if (!read(type) || !read(value.count)) return false;
    if (!known(type) || static_cast<GgufType>(type) == GgufType::Array) {
      return fail(where_ + " is an array of type " + number(type) +
                  (type == 9 ? " (nested arrays)" : "") + ", which is not supported");
    }
    value.element = static_cast<GgufType>(type);
    if (value.count > kMaxElements) {
      return fail(where_ + " has " + number(value.count) + " elements; at most " +
                  number(kMaxElements) + " are possible");
    }
  }
  const std::uint64_t at = position_;
  if (!skip_elements(value.element, value.count)) return false;
  value.bytes = file_.data_.subspan(at, position_ - at);
  file_.values_.emplace(key, value);
  file_.keys_.push_back(key);
  return true;
}

bool GgufParser::skip_elements(GgufType type, std::uint64_t count) {
  if (type != GgufType::String) return skip(scalar_size(type) * count);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string_view text;
    if (!read_text(text)) return false;
  }
  return true;
}

bool GgufParser::read_alignment() {
  const GgufValue* value = file_.find("general.alignment");
  if (value == nullptr) return true;
  Result<std::int64_t> read = file_.integer("general.alignment", 1, kMaxAlignment);
  if (!read) {
    status_ = std::unexpected(read.error());
    return false;
  }
  alignment_ = static_cast<std::uint64_t>(*read);
  if ((alignment_ & (alignment_ - 1)) != 0) {
    return fail("general.alignment is " + number(alignment_) + ", not a power of two");
  }
  return true;
}

bool GgufParser::read_tensors() {
  for (std::uint64_t i = 0; i < n_tensors_; ++i) {
    where_ = "tensor " + number(i + 1) + " of " + number(n_tensors_);
    GgufTensor tensor;
    if (!read_tensor(tensor)) return false;
    if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
      return fail("tensor " + quoted(tensor.name) + " appears twice");
    }
    file_.tensors_.push_back(std::move(tensor));
  }
  return true;
}

bool GgufParser::read_tensor(GgufTensor& tensor) {
  std::string_view name;
  if (!read_text(name)) return false;
  if (name.empty() || name.size() >= GGML_MAX_NAME) {
    return fail(where_ + " has a name of " + number(name.size()) + " bytes; 1 to " +
                number(GGML_MAX_NAME - 1) + " are allowed");
  }
  tensor.name = name;
  where_ = "tensor " + quoted(name);
  std::uint32_t n_dims = 0;
  if (!read(n_dims)) return false;
  if (n_dims < 1 || n_dims > GGML_MAX_DIMS) {
    return fail(where_ + " has " + number(n_dims) + " dimensions; 1 to 4 are allowed");
  }
  tensor.n_dims = static_cast<int>(n_dims);
  for (std::uint32_t i = 0; i < n_dims; ++i) {
    if (!read(tensor.shape[i])) return false;
  }
  std::uint32_t type = 0;
  if (!read(type) || !read(tensor.offset)) return false;
  const bool valid = type < GGML_TYPE_COUNT && ggml_blck_size(static_cast<ggml_type>(type)) > 0 &&
                     ggml_type_size(static_cast<ggml_type>(type)) > 0;
  if (!valid) {
    return fail(where_ + " has the data type " + number(type) + ", which ggml does not know",
                "quantise the model to a type that llama.cpp supports");
  }
  tensor.type = static_cast<int>(type);
  return check_shape(tensor);
}

bool GgufParser::check_shape(GgufTensor& tensor) {
  const auto type = static_cast<ggml_type>(tensor.type);
  const std::int64_t block = ggml_blck_size(type);
  for (int i = 0; i < tensor.n_dims; ++i) {
    if (tensor.shape[i] < 1) {
      return fail(where_ + " has " + std::to_string(tensor.shape[i]) + " elements in dimension " +
                  std::to_string(i) + "; at least 1 is needed");
    }
  }
  if (tensor.shape[0] % block != 0) {
    return fail(where_ + " has rows of " + std::to_string(tensor.shape[0]) +
                " elements, not a multiple of the " + std::to_string(block) + " in a block of " +
                ggml_type_name(type));
  }
  // Elements are counted too: a type below one byte an element could overflow them, not the bytes.
  std::int64_t bytes = 0;
  std::int64_t elements = tensor.shape[0];
  bool overflow = __builtin_mul_overflow(tensor.shape[0] / block,
                                         static_cast<std::int64_t>(ggml_type_size(type)), &bytes);
  for (int i = 1; i < tensor.n_dims; ++i) {
    overflow |= __builtin_mul_overflow(bytes, tensor.shape[i], &bytes);
    overflow |= __builtin_mul_overflow(elements, tensor.shape[i], &elements);
  }
  if (overflow) return fail(where_ + " has a size beyond 63 bits");
  tensor.n_bytes = static_cast<std::uint64_t>(bytes);
  return true;
}

bool GgufParser::place_tensors() {
  const std::uint64_t base = (position_ + alignment_ - 1) / alignment_ * alignment_;
  std::uint64_t end = base;
  for (GgufTensor& tensor : file_.tensors_) {
    if (tensor.offset % alignment_ != 0) {
      return fail("tensor " + quoted(tensor.name) + " is at offset " + number(tensor.offset) +
                  ", not a multiple of the alignment " + number(alignment_));
    }
    std::uint64_t last = 0;
    if (__builtin_add_overflow(tensor.offset, base, &tensor.offset) ||
        __builtin_add_overflow(tensor.offset, tensor.n_bytes, &last)) {
      return fail("tensor " + quoted(tensor.name) + " has an offset beyond 64 bits");
    }
    end = std::max(end, last);
  }
  if (end > size_) {
    return fail("the file is truncated: the tensors need " + number(end) + " bytes, the file has " +
                    number(size_) + ", " + number(end - size_) + " bytes are missing",
                "download the file again");
  }
  for (const GgufTensor& tensor : file_.tensors_) {
    if (tensor.offset % kGgmlAlignment != 0) {
      return fail("tensor " + quoted(tensor.name) + " is at byte " + number(tensor.offset) +
                      " of the file, not a multiple of 32",
                  "convert the model again with general.alignment 32");
    }
  }
  return true;
}

bool GgufParser::check_overlap() {
  std::vector<std::size_t> order(file_.tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return file_.tensors_[i].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = file_.tensors_[order[i - 1]];
    const GgufTensor& after = file_.tensors_[order[i]];
    if (before.offset + before.n_bytes > after.offset) {
      return fail("tensors " + quoted(before.name) + " and " + quoted(after.name) + " overlap");
    }
  }
  return true;
}

}  // namespace qevict
