#include "model/vocab_metadata.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <unordered_set>

namespace qevict {
namespace {

constexpr std::string_view kPrefix = "tokenizer.";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kTokenTypes = "tokenizer.ggml.token_type";
constexpr std::size_t kMaxTokenBytes = 65536;

// llama.cpp reads C strings: what follows a NUL byte does not exist for it.
std::string_view c_text(std::string_view text) { return text.substr(0, text.find('\0')); }

class VocabChecker {
 public:
  explicit VocabChecker(const GgufFile& file) : file_(file) {}

  Status run() {
    for (auto step :
         {&VocabChecker::check_model, &VocabChecker::check_tokens, &VocabChecker::check_scores,
          &VocabChecker::check_token_types, &VocabChecker::check_special_ids}) {
      if (Status status = (this->*step)(); !status) return status;
    }
    return {};
  }

 private:
  Status check_model();
  Status check_tokens();
  Status check_scores();
  Status check_token_types();
  Status check_special_ids();
  Status check_length(const char* key, const GgufValue& value) const;

  const GgufFile& file_;
  bool bpe_ = false;
  std::uint64_t n_tokens_ = 0;
};

Status VocabChecker::check_model() {
  const Result<std::string_view> model = file_.text("tokenizer.ggml.model");
  if (!model) return std::unexpected(model.error());
  bpe_ = *model == "gpt2";
  if (!bpe_ && *model != "llama") {
    return file_.error("the tokenizer " + quoted(*model) +
                           " is not supported; \"llama\" (SentencePiece) and \"gpt2\" (BPE) are",
                       "use a model with one of these");
  }
  if (!bpe_) return {};
  // These do not encode bytes first, and llama.cpp aborts on a space inside a symbol.
  KeyReader keys(file_);
  const std::string pre = keys.text_or("tokenizer.ggml.pre", "default");
  if (!keys.ok()) return keys.status();
  for (const char* raw : {"whitespace", "gemma4", "sarvam-moe", "granite-embed-multi-311m"}) {
    if (pre == raw) {
      return file_.error(
          "the pre-tokenizer " + quoted(pre) + " (tokenizer.ggml.pre) is not supported",
          "use a model with another tokenizer");
    }
  }
  const Result<std::vector<std::string_view>> merges = file_.texts(kMerges);
  if (!merges) return std::unexpected(merges.error());
  return {};
}

Status VocabChecker::check_tokens() {
  const Result<std::vector<std::string_view>> tokens = file_.texts(kTokens);
  if (!tokens) return std::unexpected(tokens.error());
  n_tokens_ = tokens->size();
  std::unordered_set<std::string_view> seen;
  seen.reserve(n_tokens_);
  std::vector<std::string> names;  // of empty tokens, as llama.cpp calls them
  names.reserve(std::ranges::count_if(*tokens, [](auto t) { return c_text(t).empty(); }));
  for (std::uint64_t i = 0; i < n_tokens_; ++i) {
    std::string_view text = c_text((*tokens)[i]);
    const auto which = [i] { return "token " + std::to_string(i) + " of " + kTokens; };
    if (text.empty()) text = names.emplace_back("[EMPTY_" + std::to_string(i) + "]");
    if (text.size() > kMaxTokenBytes) {
      return file_.error(which() + " has " + std::to_string(text.size()) + " bytes, at most " +
                         std::to_string(kMaxTokenBytes) + " are possible");
    }
    if (bpe_ && find_invalid_utf8(text) != std::string_view::npos) {
      return file_.error(which() + " is not valid UTF-8");
    }
    if (!seen.insert(text).second) {
      return file_.error(which() + ", " + quoted(text) + ", appears twice");
    }
  }
  return {};
}

Status VocabChecker::check_length(const char* key, const GgufValue& value) const {
  if (value.type == GgufType::Array && value.count == n_tokens_) return {};
  return file_.error("metadata key " + quoted(key) + " has " + std::to_string(value.count) +
                     " values for " + std::to_string(n_tokens_) + " tokens");
}

Status VocabChecker::check_scores() {
  const GgufValue* value = file_.find(kScores);
  if (value == nullptr) {
    if (bpe_) return {};
    return file_.error("metadata key " + quoted(kScores) + " is missing");
  }
  if (Status status = check_length(kScores, *value); !status) return status;
  if (value->element == GgufType::Int32) return {};
  if (value->element != GgufType::Float32) {
    return file_.error("metadata key " + quoted(kScores) + " is an array of " +
                       to_string(value->element) + ", expected float32");
  }
  for (std::uint64_t i = 0; i < value->count; ++i) {
    float score = 0.0F;
    std::memcpy(&score, value->bytes.data() + i * sizeof(float), sizeof(float));
    if (std::isnan(score)) {
      return file_.error("score " + std::to_string(i) + " of " + kScores + " is not a number");
    }
  }
  return {};
}

Status VocabChecker::check_token_types() {
  const GgufValue* value = file_.find(kTokenTypes);
  if (value == nullptr) return {};
  if (Status status = check_length(kTokenTypes, *value); !status) return status;
  if (value->element != GgufType::Int32) {
    return file_.error("metadata key " + quoted(kTokenTypes) + " is an array of " +
                       to_string(value->element) + ", expected int32");
  }
  constexpr std::int32_t kByte = 6;
  const Result<std::vector<std::string_view>> tokens = file_.texts(kTokens);
  if (!tokens) return std::unexpected(tokens.error());
  for (std::uint64_t i = 0; i < value->count; ++i) {
    std::int32_t type = 0;
    std::memcpy(&type, value->bytes.data() + i * sizeof(type), sizeof(type));
    // A byte token reads <0xAB>; llama.cpp takes its digits without looking.
    if (type == kByte && c_text((*tokens)[i]).size() != 6) {
      return file_.error("token " + std::to_string(i) + " of " + kTokens + ", " +
                         quoted((*tokens)[i]) + ", is marked as a byte but is not <0x..>");
    }
  }
  return {};
}

Status VocabChecker::check_special_ids() {
  for (const std::string& key : file_.keys()) {
    if (!key.starts_with("tokenizer.ggml.") || !key.ends_with("_token_id")) continue;
    const auto last = static_cast<std::int64_t>(n_tokens_) - 1;
    const Result<std::int64_t> id = file_.integer(key, 0, last);
    if (id) continue;
    // Some converters write -1 for "none".
    const GgufValue& value = *file_.find(key);
    const bool none =
        value.type != GgufType::Array && value.bytes.size() == 4 &&
        std::ranges::all_of(value.bytes, [](std::byte b) { return b == std::byte{255}; });
    if (!none) return std::unexpected(id.error());
  }
  return {};
}

gguf_type to_ggml(GgufType type) { return static_cast<gguf_type>(static_cast<int>(type)); }

template <typename T, typename Set>
void set_scalar(gguf_context* out, const std::string& key, const GgufValue& value, Set set) {
  T x;
  std::memcpy(&x, value.bytes.data(), sizeof(T));
  set(out, key.c_str(), x);
}

void copy_scalar(const GgufFile& file, const std::string& key, gguf_context* out) {
  const GgufValue& value = *file.find(key);
  switch (value.type) {
    case GgufType::Uint8:
      set_scalar<std::uint8_t>(out, key, value, gguf_set_val_u8);
      return;
    case GgufType::Int8:
      set_scalar<std::int8_t>(out, key, value, gguf_set_val_i8);
      return;
    case GgufType::Uint16:
      set_scalar<std::uint16_t>(out, key, value, gguf_set_val_u16);
      return;
    case GgufType::Int16:
      set_scalar<std::int16_t>(out, key, value, gguf_set_val_i16);
      return;
    case GgufType::Uint32:
      set_scalar<std::uint32_t>(out, key, value, gguf_set_val_u32);
      return;
    case GgufType::Int32:
      set_scalar<std::int32_t>(out, key, value, gguf_set_val_i32);
      return;
    case GgufType::Float32:
      set_scalar<float>(out, key, value, gguf_set_val_f32);
      return;
    case GgufType::Uint64:
      set_scalar<std::uint64_t>(out, key, value, gguf_set_val_u64);
      return;
    case GgufType::Int64:
      set_scalar<std::int64_t>(out, key, value, gguf_set_val_i64);
      return;
    case GgufType::Float64:
      set_scalar<double>(out, key, value, gguf_set_val_f64);
      return;
    case GgufType::Bool:
      gguf_set_val_bool(out, key.c_str(), *file.boolean(key));
      return;
    case GgufType::String:
      gguf_set_val_str(out, key.c_str(), std::string(c_text(*file.text(key))).c_str());
      return;
    case GgufType::Array:
      return;
  }
}

void copy_array(const GgufFile& file, const std::string& key, gguf_context* out) {
  const GgufValue& value = *file.find(key);
  if (value.element != GgufType::String) {
    gguf_set_arr_data(out, key.c_str(), to_ggml(value.element), value.bytes.data(), value.count);
    return;
  }
  // One buffer for all texts, each with the NUL that the file does not have.
  const std::vector<std::string_view> texts = *file.texts(key);
  std::string buffer;
  buffer.reserve(value.bytes.size());  // a text's length field is longer than a NUL
  std::vector<const char*> pointers;
  pointers.reserve(texts.size());
  for (std::string_view text : texts) {
    pointers.push_back(buffer.data() + buffer.size());
    buffer.append(c_text(text)).push_back('\0');
  }
  gguf_set_arr_str(out, key.c_str(), pointers.data(), pointers.size());
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || i + length > text.size()) return i;
    std::uint32_t point = lead & (0x7F >> length);
    for (int k = 1; k < length; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if ((byte & 0xC0) != 0x80) return i;
      point = point << 6 | (byte & 0x3F);
    }
    constexpr std::uint32_t kSmallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
    if (point < kSmallest[length] || point > 0x10FFFF || surrogate) return i;
    i += length;
  }
  return std::string_view::npos;
}

Result<gguf_context_ptr> read_vocab_metadata(const GgufFile& file) {
  if (Status status = VocabChecker(file).run(); !status) return std::unexpected(status.error());
  gguf_context_ptr out(gguf_init_empty());
  for (const std::string& key : file.keys()) {
    const bool wanted =
        key.starts_with(kPrefix) || key == "general.architecture" || key == "general.name";
    // The original tokenizer.json, where a converter kept it, is large and not read.
    if (!wanted || key.starts_with("tokenizer.huggingface") ||
        key.find('\0') != std::string::npos) {
      continue;
    }
    if (file.find(key)->type == GgufType::Array) {
      copy_array(file, key, out.get());
    } else {
      copy_scalar(file, key, out.get());
    }
  }
  return out;
}

}  // namespace qevict
