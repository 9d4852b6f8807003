// The Tokenizer of a validated file.
#pragma once

#include <memory>

#include "model/gguf_file.h"
#include "model/tokenizer.h"
#include "qevict/result.h"

namespace qevict {

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const GgufFile& file);

}  // namespace qevict
