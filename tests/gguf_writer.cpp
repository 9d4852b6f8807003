#include "gguf_writer.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <vector>

#include "ggml-cpp.h"
#include "ggml.h"
#include "gguf.h"

namespace qevict {
namespace {

constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6;  // llama.cpp's token types

struct Vocab {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<std::int32_t> types;

  void add(const std::string& text, int type) {
    tokens.push_back(text);
    scores.push_back(type == kNormal ? -static_cast<float>(tokens.size()) : 0.0F);
    types.push_back(type);
  }
};

const Vocab& tiny_vocab() {
  static const Vocab kVocab = [] {
    Vocab v;
    v.add("<unk>", kUnknown);
    v.add("<s>", kControl);
    v.add("</s>", kControl);
    v.add("<|im_start|>", kControl);
    v.add("<|im_end|>", kControl);
    for (int i = 0; i < 256; ++i) {
      char text[8];
      std::snprintf(text, sizeof(text), "<0x%02X>", i);
      v.add(text, kByte);
    }
    const std::string space = "\xE2\x96\x81";  // how SentencePiece writes a space
    for (const char* word : {"the", "and", "was", "he", "in", "on", "er"}) {
      v.add(space + word, kNormal);
      v.add(word, kNormal);
    }
    v.add(space, kNormal);
    for (char c = 'a'; c <= 'z'; ++c) {
      v.add(std::string(1, c), kNormal);
      v.add(space + c, kNormal);
    }
    for (char c = 'A'; c <= 'Z'; ++c) v.add(std::string(1, c), kNormal);
    for (const char* c : {".", ",", "!", "?", "'", "-"}) v.add(c, kNormal);
    return v;
  }();
  return kVocab;
}

ggml_type find_type(const std::string& name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (ggml_blck_size(type) > 0 && name == ggml_type_name(type)) return type;
  }
  return GGML_TYPE_COUNT;
}

class Writer {
 public:
  explicit Writer(const TinyModel& model)
      : m_(model),
        n_embd_(model.n_embd > 0 ? model.n_embd : model.n_heads * model.head_dim),
        n_vocab_(tiny_vocab_size()),
        gguf_(gguf_init_empty()),
        context_(ggml_init({std::size_t{64} << 20, nullptr, false})),
        random_(model.seed) {}

  std::string run(const std::string& path) {
    type_ = find_type(m_.type);
    if (type_ == GGML_TYPE_COUNT) return "unknown type " + m_.type;
    metadata();
    vocabulary();
    tensors();
    for (const auto& [key, value] : m_.integers) {
      gguf_set_val_u32(gguf_.get(), key.c_str(), static_cast<std::uint32_t>(value));
    }
    for (const auto& [key, value] : m_.texts) {
      gguf_set_val_str(gguf_.get(), key.c_str(), value.c_str());
    }
    for (const std::string& key : m_.without) gguf_remove_key(gguf_.get(), key.c_str());
    return gguf_write_to_file(gguf_.get(), path.c_str(), false) ? "" : "cannot write " + path;
  }

 private:
  void integer(const std::string& name, int value) {
    gguf_set_val_u32(gguf_.get(), (m_.arch + "." + name).c_str(),
                     static_cast<std::uint32_t>(value));
  }
  void real(const std::string& name, double value) {
    gguf_set_val_f32(gguf_.get(), (m_.arch + "." + name).c_str(), static_cast<float>(value));
  }
  void metadata();
  void vocabulary();
  void tensors();
  void layer(int i);
  void matrix(const std::string& name, int n_in, int n_out, float scale);
  void vector(const std::string& name, int n, float mean, float deviation);
  void add(const std::string& name, ggml_tensor* tensor, const std::vector<float>& values);
  std::vector<float> normal(std::size_t n, float mean, float deviation);

  const TinyModel& m_;
  int n_embd_;
  int n_vocab_;
  gguf_context_ptr gguf_;
  ggml_context_ptr context_;
  std::mt19937 random_;
  ggml_type type_ = GGML_TYPE_F32;
};

void Writer::metadata() {
  gguf_set_val_str(gguf_.get(), "general.architecture", m_.arch.c_str());
  gguf_set_val_str(gguf_.get(), "general.name", "tiny");
  integer("block_count", m_.n_layers);
  integer("context_length", m_.n_ctx);
  integer("embedding_length", n_embd_);
  integer("feed_forward_length", m_.n_ff);
  integer("attention.head_count", m_.n_heads);
  integer("attention.head_count_kv", m_.n_kv_heads);
  integer("attention.key_length", m_.head_dim);
  integer("attention.value_length", m_.head_dim);
  integer("rope.dimension_count", m_.head_dim);
  real("attention.layer_norm_rms_epsilon", 1e-5);
  real("rope.freq_base", m_.rope_base);
  if (m_.rope_scale > 0.0) {
    gguf_set_val_str(gguf_.get(), (m_.arch + ".rope.scaling.type").c_str(), "linear");
    real("rope.scaling.factor", m_.rope_scale);
  }
}

void Writer::vocabulary() {
  const Vocab& v = tiny_vocab();
  std::vector<const char*> texts;
  for (const std::string& token : v.tokens) texts.push_back(token.c_str());
  gguf_context* g = gguf_.get();
  gguf_set_val_str(g, "tokenizer.ggml.model", "llama");
  gguf_set_arr_str(g, "tokenizer.ggml.tokens", texts.data(), texts.size());
  gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, v.scores.data(),
                    v.scores.size());
  gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, v.types.data(),
                    v.types.size());
  gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 1);
  gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", 2);
  gguf_set_val_u32(g, "tokenizer.ggml.unknown_token_id", 0);
  gguf_set_val_str(g, "tokenizer.chat_template",
                   "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                   "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}");
}

std::vector<float> Writer::normal(std::size_t n, float mean, float deviation) {
  std::normal_distribution<float> distribution(mean, deviation);
  std::vector<float> values(n);
  for (float& x : values) x = distribution(random_);
  return values;
}

void Writer::add(const std::string& name, ggml_tensor* tensor, const std::vector<float>& values) {
  if (m_.without.contains(name)) return;
  ggml_set_name(tensor, name.c_str());
  // Quantises, or converts, or copies: whatever the type asks for.
  ggml_quantize_chunk(tensor->type, values.data(), tensor->data, 0, ggml_nrows(tensor),
                      tensor->ne[0], nullptr);
  gguf_add_tensor(gguf_.get(), tensor);
}

void Writer::matrix(const std::string& name, int n_in, int n_out, float scale) {
  const float deviation = scale / std::sqrt(static_cast<float>(n_in));
  add(name, ggml_new_tensor_2d(context_.get(), type_, n_in, n_out),
      normal(std::size_t(n_in) * n_out, 0.0F, deviation));
}

void Writer::vector(const std::string& name, int n, float mean, float deviation) {
  add(name, ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, n),
      normal(std::size_t(n), mean, deviation));
}

void Writer::layer(int i) {
  const std::string p = "blk." + std::to_string(i) + ".";
  const int n_q = m_.n_heads * m_.head_dim;
  const int n_kv = m_.n_kv_heads * m_.head_dim;
  vector(p + "attn_norm.weight", n_embd_, 1.0F, 0.1F);
  matrix(p + "attn_q.weight", n_embd_, n_q, 1.5F);
  matrix(p + "attn_k.weight", n_embd_, n_kv, 1.5F);
  matrix(p + "attn_v.weight", n_embd_, n_kv, 1.0F);
  matrix(p + "attn_output.weight", n_q, n_embd_, 1.0F);
  if (m_.arch == "qwen2") {
    vector(p + "attn_q.bias", n_q, 0.0F, 0.3F);
    vector(p + "attn_k.bias", n_kv, 0.0F, 0.3F + m_.key_bias);
    vector(p + "attn_v.bias", n_kv, 0.0F, 0.3F);
  }
  if (m_.arch == "qwen3") {
    vector(p + "attn_q_norm.weight", m_.head_dim, 1.0F, 0.2F);
    vector(p + "attn_k_norm.weight", m_.head_dim, 1.0F, 0.2F);
  }
  vector(p + "ffn_norm.weight", n_embd_, 1.0F, 0.1F);
  matrix(p + "ffn_gate.weight", n_embd_, m_.n_ff, 1.0F);
  matrix(p + "ffn_up.weight", n_embd_, m_.n_ff, 1.0F);
  matrix(p + "ffn_down.weight", m_.n_ff, n_embd_, 1.0F);
}

void Writer::tensors() {
  // Embeddings large enough that logits differ clearly from each other.
  const float width = std::sqrt(static_cast<float>(n_embd_));
  matrix("token_embd.weight", n_embd_, n_vocab_, m_.tied ? 3.0F : width);
  for (int i = 0; i < m_.n_layers; ++i) layer(i);
  vector("output_norm.weight", n_embd_, 1.0F, 0.1F);
  if (!m_.tied) matrix("output.weight", n_embd_, n_vocab_, 3.0F);
  if (m_.rope_factors) {
    ggml_tensor* factors = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, m_.head_dim / 2);
    std::vector<float> values;
    for (int i = 0; i < m_.head_dim / 2; ++i) values.push_back(i < m_.head_dim / 4 ? 1.0F : 4.0F);
    add("rope_freqs.weight", factors, values);
  }
}

}  // namespace

int tiny_vocab_size() { return static_cast<int>(tiny_vocab().tokens.size()); }

std::string temp_model_path(const std::string& name) {
  const std::string file = "qevict_" + std::to_string(::getpid()) + "_" + name + ".gguf";
  return (std::filesystem::temp_directory_path() / file).string();
}

std::string write_tiny_model(const std::string& path, const TinyModel& model) {
  return Writer(model).run(path);
}

}  // namespace qevict
