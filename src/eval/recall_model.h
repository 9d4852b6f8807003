// The recall model, which is part of the program: its bytes, and a file of them for the loader.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "qevict/result.h"

namespace qevict {

// A GGUF file; where it comes from: tools/recall_model.
std::span<const std::byte> recall_model_bytes();

// A temporary file with these bytes, removed with the object. An engine that was loaded from it
// keeps working.
class RecallModelFile {
 public:
  static Result<RecallModelFile> create();
  RecallModelFile(RecallModelFile&& other) noexcept;
  RecallModelFile& operator=(RecallModelFile&&) = delete;
  ~RecallModelFile();
  const std::string& path() const { return path_; }

 private:
  RecallModelFile() = default;
  std::string path_;
};

}  // namespace qevict
