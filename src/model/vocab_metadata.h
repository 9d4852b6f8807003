// The tokenizer's part of a GGUF, checked and handed to llama.cpp as metadata of its own.
//
// llama.cpp aborts or throws on vocabularies that break its assumptions. It never sees the file: it
// gets a fresh metadata object with the tokenizer's keys only.
#pragma once

#include "ggml-cpp.h"
#include "gguf.h"
#include "model/gguf_file.h"
#include "qevict/result.h"

namespace qevict {

// Errors: BadInput naming the key and what is wrong with it.
Result<gguf_context_ptr> read_vocab_metadata(const GgufFile& file);

// Position of the first byte that is not valid UTF-8; npos if all is.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace qevict
