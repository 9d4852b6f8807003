#include "model/hparams.h"

#include <cmath>
#include <cstring>
#include <map>

#include "ggml.h"

namespace qevict {
namespace {

constexpr int kMaxLayers = 512;  // llama.cpp's limit
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 256;  // the attention kernels' limit (kernels.h)
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxContext = 1 << 30;

// Names of general.file_type (llama_ftype), for display only.
const char* file_type_name(std::int64_t type) {
  static const std::map<std::int64_t, const char*> kNames = {
      {0, "F32"},      {1, "F16"},      {2, "Q4_0"},    {3, "Q4_1"},    {7, "Q8_0"},
      {8, "Q5_0"},     {9, "Q5_1"},     {10, "Q2_K"},   {11, "Q3_K_S"}, {12, "Q3_K_M"},
      {13, "Q3_K_L"},  {14, "Q4_K_S"},  {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"},
      {18, "Q6_K"},    {19, "IQ2_XXS"}, {20, "IQ2_XS"}, {21, "Q2_K_S"}, {22, "IQ3_XS"},
      {23, "IQ3_XXS"}, {24, "IQ1_S"},   {25, "IQ4_NL"}, {26, "IQ3_S"},  {27, "IQ3_M"},
      {28, "IQ2_S"},   {29, "IQ2_M"},   {30, "IQ4_XS"}, {31, "IQ1_M"},  {32, "BF16"},
      {36, "TQ1_0"},   {37, "TQ2_0"},
  };
  const auto it = kNames.find(type);
  return it == kNames.end() ? nullptr : it->second;
}

// What most of the weights are, where the file does not say.
std::string dominant_type(const GgufFile& file) {
  std::map<int, std::uint64_t> bytes;
  for (const GgufTensor& tensor : file.tensors()) bytes[tensor.type] += tensor.n_bytes;
  int best = 0;
  std::uint64_t most = 0;
  for (const auto& [type, n] : bytes) {
    if (n > most) best = type, most = n;
  }
  return ggml_type_name(static_cast<ggml_type>(best));
}

void describe(const GgufFile& file, HParams& h) {
  KeyReader general(file, "general.");
  h.name = general.text_or("name", "");
  const char* type = nullptr;
  if (general.has("file_type")) type = file_type_name(general.integer("file_type", 0, 1 << 16));
  h.file_type = type != nullptr ? type : dominant_type(file);
  for (const GgufTensor& tensor : file.tensors()) {
    h.n_params += tensor.n_elements();
    h.weight_bytes += static_cast<std::int64_t>(tensor.n_bytes);
  }
}

void refuse_other_graphs(KeyReader& keys) {
  const char* use_other = "use a model without it";
  if (keys.integer_or("expert_count", 0, kMaxWidth, 0) > 0) {
    keys.fail("the model is a mixture of experts (" + keys.key("expert_count") +
                  "), which is not supported",
              "use a dense model");
  }
  if (!keys.boolean_or("attention.causal", true)) {
    keys.fail("attention is not causal (" + keys.key("attention.causal") + ")",
              "use a text generation model");
  }
  if (keys.integer_or("nextn_predict_layers", 0, kMaxLayers, 0) > 0) {
    keys.fail("layers for multi-token prediction are not supported (" +
                  keys.key("nextn_predict_layers") + ")",
              use_other);
  }
  if (keys.real_or("rope.scaling.attn_factor", 0, 1e6, 1.0) != 1.0) {
    keys.fail("attention factors of RoPE scaling are not supported (" +
                  keys.key("rope.scaling.attn_factor") + ")",
              use_other);
  }
}

void read_heads(KeyReader& keys, HParams& h) {
  h.n_heads = keys.uniform_integer("attention.head_count", h.n_layers, 1, kMaxHeads);
  h.n_kv_heads = h.n_heads;
  if (keys.has("attention.head_count_kv")) {
    h.n_kv_heads = keys.uniform_integer("attention.head_count_kv", h.n_layers, 1, kMaxHeads);
  }
  if (!keys.ok()) return;
  if (h.n_heads % h.n_kv_heads != 0) {
    keys.fail(keys.key("attention.head_count") + " is " + std::to_string(h.n_heads) +
              ", not a multiple of the " + std::to_string(h.n_kv_heads) + " KV heads");
  }
  if (!keys.has("attention.key_length") && h.n_embd % h.n_heads != 0) {
    keys.fail(keys.key("embedding_length") + " is " + std::to_string(h.n_embd) +
              ", not a multiple of the " + std::to_string(h.n_heads) + " heads");
  }
  const int derived = std::max(1, h.n_embd / h.n_heads);
  h.head_dim = keys.integer_or("attention.key_length", 1, kMaxHeadDim, derived);
  const int value_length = keys.integer_or("attention.value_length", 1, kMaxHeadDim, derived);
  const int rope_length = keys.integer_or("rope.dimension_count", 1, kMaxHeadDim, h.head_dim);
  if (!keys.ok()) return;
  const std::string d = std::to_string(h.head_dim);
  if (value_length != h.head_dim) {
    keys.fail("values of " + std::to_string(value_length) + " channels beside keys of " + d +
                  " are not supported",
              "use a model where they are equal");
  }
  if (rope_length != h.head_dim) {
    keys.fail(keys.key("rope.dimension_count") + " is " + std::to_string(rope_length) +
                  ", but a head has " + d + " channels",
              "use a model whose RoPE covers the whole head");
  }
  if (h.head_dim % 4 != 0 || h.head_dim < 8 || h.head_dim > kMaxHeadDim) {
    keys.fail("a head has " + d + " channels; a multiple of 4 up to " +
                  std::to_string(kMaxHeadDim) + " is needed",
              "use another model");
  }
}

// The factor by which positions are divided; 1 without scaling.
double read_rope_scale(KeyReader& keys) {
  const std::string type = keys.text_or("rope.scaling.type", "linear");
  if (type == "none") return 1.0;
  if (type != "linear") {
    keys.fail("RoPE scaling of type " + quoted(type) +
                  " is not supported; none, linear and Llama 3.1's factors are",
              "use a model without it");
    return 1.0;
  }
  const char* old_name = "rope.scale_linear";
  const bool is_old = !keys.has("rope.scaling.factor") && keys.has(old_name);
  const double factor = keys.real_or(is_old ? old_name : "rope.scaling.factor", 0.0, 1e6, 1.0);
  return factor == 0.0 ? 1.0 : factor;
}

void read_rope(const GgufFile& file, const ArchSpec& arch, KeyReader& keys, HParams& h) {
  h.rope_base = keys.real_or("rope.freq_base", 1.0, 1e12, 10000.0);
  const double scale = read_rope_scale(keys);
  if (!keys.ok()) return;
  h.rope.pairing = arch.pairing;
  h.rope.head_dim = h.head_dim;
  h.rope.inv_freq.resize(h.head_dim / 2);
  for (std::size_t i = 0; i < h.rope.inv_freq.size(); ++i) {
    h.rope.inv_freq[i] = std::pow(h.rope_base, -2.0 * static_cast<double>(i) / h.head_dim) / scale;
  }
  const GgufTensor* factors = file.find_tensor("rope_freqs.weight");
  if (factors == nullptr || !arch.rope_factors) return;
  if (factors->type != GGML_TYPE_F32 || factors->n_elements() != h.head_dim / 2) {
    keys.fail("tensor \"rope_freqs.weight\" has " + std::to_string(factors->n_elements()) + " " +
              ggml_type_name(static_cast<ggml_type>(factors->type)) + " values, expected " +
              std::to_string(h.head_dim / 2) + " f32");
    return;
  }
  for (std::size_t i = 0; i < h.rope.inv_freq.size(); ++i) {
    float factor = 0.0F;
    std::memcpy(&factor, file.data().data() + factors->offset + i * sizeof(float), sizeof(float));
    if (!(factor > 0.0F) || !std::isfinite(factor)) {
      keys.fail("tensor \"rope_freqs.weight\" holds a factor that is not positive (index " +
                std::to_string(i) + ")");
      return;
    }
    h.rope.inv_freq[i] /= factor;
  }
}

}  // namespace

Result<const ArchSpec*> read_arch(const GgufFile& file) {
  const Result<std::string_view> name = file.text("general.architecture");
  if (!name) return std::unexpected(name.error());
  KeyReader keys(file);
  const std::string type = keys.text_or("general.type", "model");
  if (type != "model") {
    keys.fail("the file holds a " + quoted(type) + ", not a model", "give the model's own file");
  }
  if (keys.integer_or("split.count", 0, 65535, 1) > 1) {
    keys.fail("the model is split over several files (split.count)",
              "merge them with llama-gguf-split --merge");
  }
  if (!keys.ok()) return std::unexpected(keys.status().error());
  const ArchSpec* arch = find_arch(*name);
  if (arch == nullptr) {
    return file.error(
        "the architecture " + quoted(*name) + " is not supported; supported are " + arch_names(),
        "use a model of one of these");
  }
  return arch;
}

Result<HParams> read_hparams(const GgufFile& file, const ArchSpec& arch) {
  HParams h;
  h.arch = arch.name;
  KeyReader keys(file, h.arch + ".");
  h.n_layers = keys.integer("block_count", 1, kMaxLayers);
  h.n_ctx_train = keys.integer("context_length", 1, kMaxContext);
  h.n_embd = keys.integer("embedding_length", 1, kMaxWidth);
  h.n_ff = keys.uniform_integer("feed_forward_length", h.n_layers, 1, kMaxWidth);
  h.rms_eps = static_cast<float>(keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0));
  refuse_other_graphs(keys);
  if (keys.ok()) read_heads(keys, h);
  if (keys.ok()) read_rope(file, arch, keys, h);
  const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->count < 1 || tokens->count > kMaxVocab) {
    keys.fail("metadata key \"tokenizer.ggml.tokens\" has " +
              std::to_string(tokens != nullptr ? tokens->count : 0) + " tokens, expected 1 to " +
              std::to_string(kMaxVocab));
  } else {
    h.n_vocab = static_cast<int>(tokens->count);
  }
  if (!keys.ok()) return std::unexpected(keys.status().error());
  describe(file, h);
  return h;
}

}  // namespace qevict
