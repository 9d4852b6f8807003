// The checks behind GgufFile::open(): one pass over header, metadata and tensor table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/gguf_file.h"
#include "qevict/result.h"

namespace qevict {

class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), size_(file.data_.size()) {}
  Status run();

 private:
  // Reads move `position_`; where_ names what is being read for the message of a short file.
  template <typename T>
  bool read(T& value);
  bool read_text(std::string_view& text);
  bool skip(std::uint64_t n);
  std::uint64_t left() const { return size_ - position_; }
  bool fail(const std::string& what, const std::string& advice = "");

  bool read_header();
  bool read_values();
  bool read_value(const std::string& key);
  bool skip_elements(GgufType type, std::uint64_t count);
  bool read_alignment();
  bool read_tensors();
  bool read_tensor(GgufTensor& tensor);
  bool check_shape(GgufTensor& tensor);
  bool place_tensors();
  bool check_overlap();

  GgufFile& file_;
  std::uint64_t size_;
  std::uint64_t position_ = 0;
  std::string where_;
  std::uint64_t n_tensors_ = 0;
  std::uint64_t n_values_ = 0;
  std::uint64_t alignment_ = 32;
  Status status_;
};

}  // namespace qevict
