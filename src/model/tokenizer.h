// Tokenizer, chat template and samplers of a GGUF, from llama.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "qevict/result.h"

namespace qevict {

using TokenId = std::int32_t;

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // add_special: BOS and the like as the model asks; parse_special: "<|im_end|>" becomes its token.
  // Invalid UTF-8 is refused.
  virtual Result<std::vector<TokenId>> encode(const std::string& text, bool add_special,
                                              bool parse_special) const = 0;
  // The bytes of one token (may be part of a UTF-8 sequence). Special tokens give "" unless asked.
  virtual std::string piece(TokenId token, bool special = false) const = 0;
  virtual std::string decode(std::span<const TokenId> tokens, bool special = false) const = 0;
  virtual bool is_eog(TokenId token) const = 0;  // any end-of-generation token
  virtual std::vector<TokenId> eog_tokens() const = 0;
  virtual TokenId bos() const = 0;  // -1: none
  virtual TokenId eos() const = 0;
  virtual int n_vocab() const = 0;
  virtual bool has_chat_template() const = 0;
  virtual const std::string& chat_template() const = 0;
  // The model's own template applied; the text is then encoded with parse_special = true and
  // add_special = false unless the template lacks the BOS (llama.cpp's rule).
  virtual Result<std::string> apply_chat_template(std::span<const ChatMessage> messages,
                                                  bool add_assistant) const = 0;
};

struct SamplerOptions {
  float temperature = 0.0F;  // 0: greedy (lowest id among equals)
  int top_k = 40;
  float top_p = 0.95F;
  float min_p = 0.05F;
  std::uint32_t seed = 0;
};

// A chain of llama.cpp's samplers. Not thread safe.
class Sampler {
 public:
  static std::unique_ptr<Sampler> create(const SamplerOptions& options, int n_vocab);
  virtual ~Sampler() = default;
  virtual TokenId sample(std::span<const float> logits) = 0;
};

}  // namespace qevict
