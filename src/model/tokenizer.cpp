#include "model/tokenizer.h"

#include <climits>
#include <exception>
#include <utility>

#include "llama.h"
#include "model/backend.h"
#include "model/llama_tokenizer.h"
#include "model/vocab_metadata.h"

namespace qevict {
namespace {

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
using VocabModel = std::unique_ptr<llama_model, ModelDeleter>;

class LlamaTokenizer final : public Tokenizer {
 public:
  LlamaTokenizer(VocabModel model, std::string chat_template)
      : model_(std::move(model)),
        vocab_(llama_model_get_vocab(model_.get())),
        n_vocab_(llama_vocab_n_tokens(vocab_)),
        chat_template_(std::move(chat_template)) {
    for (TokenId token = 0; token < n_vocab_; ++token) {
      if (llama_vocab_is_eog(vocab_, token)) eog_.push_back(token);
    }
  }

  Result<std::vector<TokenId>> encode(const std::string& text, bool add_special,
                                      bool parse_special) const override;
  std::string piece(TokenId token, bool special) const override;
  std::string decode(std::span<const TokenId> tokens, bool special) const override;
  bool is_eog(TokenId token) const override {
    return token >= 0 && token < n_vocab_ && llama_vocab_is_eog(vocab_, token);
  }
  std::vector<TokenId> eog_tokens() const override { return eog_; }
  TokenId bos() const override { return llama_vocab_bos(vocab_); }
  TokenId eos() const override { return llama_vocab_eos(vocab_); }
  int n_vocab() const override { return n_vocab_; }
  bool has_chat_template() const override { return !chat_template_.empty(); }
  const std::string& chat_template() const override { return chat_template_; }
  Result<std::string> apply_chat_template(std::span<const ChatMessage> messages,
                                          bool add_assistant) const override;

  // llama.cpp aborts when it should add a token that the vocabulary lacks.
  bool lacks_added_tokens() const {
    const bool bos = llama_vocab_get_add_bos(vocab_) && llama_vocab_bos(vocab_) < 0;
    const bool eos = llama_vocab_get_add_eos(vocab_) && llama_vocab_eos(vocab_) < 0;
    return bos || eos;
  }

 private:
  VocabModel model_;
  const llama_vocab* vocab_;
  int n_vocab_;
  std::string chat_template_;
  std::vector<TokenId> eog_;
};

Result<std::vector<TokenId>> LlamaTokenizer::encode(const std::string& text, bool add_special,
                                                    bool parse_special) const {
  const std::size_t bad = find_invalid_utf8(text);
  if (bad != std::string_view::npos) {
    return bad_input("the text is not valid UTF-8 (byte " + std::to_string(bad) +
                     "): convert it to UTF-8");
  }
  // A token is at least one byte, special ones come on top.
  constexpr std::size_t kExtra = 16;
  if (text.size() > INT_MAX - kExtra) {
    return bad_input("the text has " + std::to_string(text.size()) + " bytes (limit " +
                     std::to_string(INT_MAX - kExtra) + "): shorten it");
  }
  try {
    std::vector<TokenId> tokens(text.size() + kExtra);
    const int n = llama_tokenize(vocab_, text.data(), static_cast<int>(text.size()), tokens.data(),
                                 static_cast<int>(tokens.size()), add_special, parse_special);
    if (n < 0) return runtime_error("the text has too many tokens (tokenizer): shorten it");
    tokens.resize(static_cast<std::size_t>(n));
    tokens.shrink_to_fit();
    return tokens;
  } catch (const std::exception&) {
    // SentencePiece without byte tokens: llama.cpp throws at the first unknown character.
    return bad_input(
        "the text has characters that the model's vocabulary lacks (tokenizer): change the text or "
        "use another model");
  }
}

std::string LlamaTokenizer::piece(TokenId token, bool special) const {
  if (token < 0 || token >= n_vocab_) return "";
  try {
    std::string text(32, '\0');
    int n =
        llama_token_to_piece(vocab_, token, text.data(), static_cast<int>(text.size()), 0, special);
    if (n < 0) {
      text.resize(static_cast<std::size_t>(-n));
      n = llama_token_to_piece(vocab_, token, text.data(), -n, 0, special);
    }
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  } catch (const std::exception&) {
    return "";
  }
}

std::string LlamaTokenizer::decode(std::span<const TokenId> tokens, bool special) const {
  std::string text;
  for (TokenId token : tokens) text += piece(token, special);
  return text;
}

Result<std::string> LlamaTokenizer::apply_chat_template(std::span<const ChatMessage> messages,
                                                        bool add_assistant) const {
  if (chat_template_.empty()) {
    return bad_input(
        "the model has no chat template (tokenizer.chat_template): give a plain prompt");
  }
  if (messages.empty()) return bad_input("there are no messages (chat): give at least one");
  std::vector<llama_chat_message> chat;
  std::size_t bytes = 0;
  for (const ChatMessage& message : messages) {
    if (message.content.find('\0') != std::string::npos) {
      return bad_input("a message contains a NUL byte (chat): remove it");
    }
    chat.push_back({message.role.c_str(), message.content.c_str()});
    bytes += message.role.size() + message.content.size() + 64;
  }
  if (bytes > INT_MAX / 2) return bad_input("the messages are too long (chat): shorten them");
  try {
    std::string text(bytes, '\0');
    int n = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
      n = llama_chat_apply_template(chat_template_.c_str(), chat.data(), chat.size(), add_assistant,
                                    text.data(), static_cast<int>(text.size()));
      if (n <= static_cast<int>(text.size())) break;
      text.resize(static_cast<std::size_t>(n));
    }
    if (n >= 0) {
      text.resize(static_cast<std::size_t>(n));
      return text;
    }
  } catch (const std::exception&) {
    // Reported like a template that llama.cpp does not recognise.
  }
  return bad_input(
      "the model's chat template is none that llama.cpp knows (tokenizer.chat_template): give a "
      "prompt that already contains the model's own markers");
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const GgufFile& file) {
  init_backend();
  const Result<gguf_context_ptr> metadata = read_vocab_metadata(file);
  if (!metadata) return std::unexpected(metadata.error());
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  params.n_gpu_layers = 0;
  take_backend_error();
  VocabModel model;
  try {
    model.reset(llama_model_init_from_user(metadata->get(), nullptr, nullptr, params));
  } catch (const std::exception& e) {
    return file.error(std::string("llama.cpp refuses the tokenizer: ") + e.what());
  }
  if (!model) return file.error("llama.cpp refuses the tokenizer: " + take_backend_error());
  const bool has_template = file.find("tokenizer.chat_template") != nullptr;
  std::string chat_template;
  if (has_template) {
    const Result<std::string_view> text = file.text("tokenizer.chat_template");
    if (!text) return std::unexpected(text.error());
    chat_template = *text;
  }
  auto tokenizer = std::make_unique<LlamaTokenizer>(std::move(model), std::move(chat_template));
  if (tokenizer->lacks_added_tokens()) {
    return file.error(
        "the tokenizer asks for a BOS or EOS token (tokenizer.ggml.add_bos_token, add_eos_token) "
        "but names none");
  }
  return tokenizer;
}

}  // namespace qevict
