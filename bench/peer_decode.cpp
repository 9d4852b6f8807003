// llama.cpp's decode speed at a depth, through libllama: the peer of `qevict bench decode`.
//
//   peer_decode MODEL DEPTH STEPS THREADS f16|q8_0|q4_0 FLASH(0|1) [real]
//
// The cache is filled as `--synthetic-cache` fills ours: the state of 256 decoded tokens is saved,
// its rows are repeated up to DEPTH, and the result is loaded as the sequence's state; the time of
// a step depends on the number of cells, not on what is in them. `real` decodes DEPTH tokens
// instead (minutes), to check that. Prints a JSON line like qevict's.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ggml-cpu.h"
#include "llama.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSeedTokens = 256;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "peer_decode: error: %s\n", what);
  std::exit(1);
}

std::vector<llama_token> random_tokens(const llama_vocab* vocab, int n) {
  std::vector<llama_token> tokens;
  unsigned x = 42;
  for (int i = 0; i < n; ++i) {
    x = x * 1664525U + 1013904223U;
    tokens.push_back(
        static_cast<llama_token>((x >> 8U) % unsigned(llama_vocab_n_tokens(vocab) / 2)));
  }
  return tokens;
}

void decode(llama_context* context, llama_token* tokens, int n) {
  if (llama_decode(context, llama_batch_get_one(tokens, n)) != 0) fail("llama_decode failed");
}

// Reads the saved state of kSeedTokens cells and writes one of `depth` cells.
class StateStretcher {
 public:
  StateStretcher(const std::vector<std::uint8_t>& in, std::uint32_t depth)
      : in_(in), depth_(depth) {}

  // False: the layout is not the one that this program knows.
  bool run() {
    copy<std::uint32_t>();  // magic
    copy<std::int32_t>();   // sequence
    copy<std::uint32_t>();  // streams
    cells_ = get<std::uint32_t>();
    put(depth_);
    const std::size_t cells = at_;
    for (std::uint32_t i = 0; i < depth_; ++i) {
      at_ = cells;  // every cell is one of this sequence; its position is its number
      get<std::int32_t>();
      put(static_cast<std::int32_t>(i));
      if (copy<std::uint32_t>() != 1) return false;
      copy<std::int32_t>();
    }
    at_ = cells + static_cast<std::size_t>(cells_) * 12;
    const auto transposed = copy<std::uint32_t>();
    const auto layers = copy<std::uint32_t>();
    if (transposed > 1 || layers == 0 || layers > 1024) return false;
    for (std::uint32_t i = 0; i < layers; ++i) {
      copy<std::int32_t>();  // type
      if (!repeat(copy<std::uint64_t>())) return false;
    }
    for (std::uint32_t i = 0; i < layers; ++i) {
      copy<std::int32_t>();
      if (transposed == 0) {
        if (!repeat(copy<std::uint64_t>())) return false;
        continue;
      }
      const auto size = copy<std::uint32_t>();
      const auto channels = copy<std::uint32_t>();
      for (std::uint32_t c = 0; c < channels; ++c) {
        if (!repeat(size)) return false;
      }
    }
    return at_ == in_.size();
  }
  const std::vector<std::uint8_t>& out() const { return out_; }

 private:
  template <typename T>
  T get() {
    T x{};
    if (at_ + sizeof(T) <= in_.size()) std::memcpy(&x, in_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return x;
  }
  template <typename T>
  void put(T x) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&x);
    out_.insert(out_.end(), bytes, bytes + sizeof(T));
  }
  template <typename T>
  T copy() {
    const T x = get<T>();
    put(x);
    return x;
  }
  // `depth` rows out of the `cells_` that follow.
  bool repeat(std::size_t row_bytes) {
    const std::size_t bytes = row_bytes * cells_;
    if (row_bytes == 0 || at_ + bytes > in_.size()) return false;
    for (std::size_t left = row_bytes * depth_; left > 0;) {
      const std::size_t n = std::min(left, bytes);
      out_.insert(out_.end(), in_.begin() + at_, in_.begin() + at_ + n);
      left -= n;
    }
    at_ += bytes;
    return true;
  }

  const std::vector<std::uint8_t>& in_;
  std::uint32_t depth_, cells_ = 0;
  std::size_t at_ = 0;
  std::vector<std::uint8_t> out_;
};

void fill(llama_context* context, std::vector<llama_token>& tokens, int depth, bool real) {
  if (real || depth <= kSeedTokens) {
    for (int at = 0; at < depth; at += 512) decode(context, &tokens[at], std::min(512, depth - at));
    return;
  }
  decode(context, tokens.data(), kSeedTokens);
  std::vector<std::uint8_t> state(llama_state_seq_get_size(context, 0));
  state.resize(llama_state_seq_get_data(context, state.data(), state.size(), 0));
  StateStretcher stretcher(state, static_cast<std::uint32_t>(depth));
  if (!stretcher.run()) fail("the state's layout is unknown: fill the cache with `real`");
  llama_memory_clear(llama_get_memory(context), true);
  if (llama_state_seq_set_data(context, stretcher.out().data(), stretcher.out().size(), 0) == 0) {
    fail("the state was refused: fill the cache with `real`");
  }
  if (llama_memory_seq_pos_max(llama_get_memory(context), 0) + 1 != depth) fail("wrong depth");
}

ggml_type cache_type(const std::string& name) {
  if (name == "q8_0") return GGML_TYPE_Q8_0;
  if (name == "q4_0") return GGML_TYPE_Q4_0;
  return GGML_TYPE_F16;
}

double quantile(std::vector<double> x, double q) {
  std::sort(x.begin(), x.end());
  return x[static_cast<std::size_t>(q * static_cast<double>(x.size() - 1) + 0.5)];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: peer_decode MODEL DEPTH STEPS THREADS f16|q8_0|q4_0 0|1 [real]\n");
    return 2;
  }
  const int depth = std::atoi(argv[2]);
  const int steps = std::atoi(argv[3]);
  const int threads = std::atoi(argv[4]);
  const std::string type = argv[5];
  const bool flash = std::atoi(argv[6]) != 0;
  const bool real = argc > 7 && std::strcmp(argv[7], "real") == 0;
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) fail("the model could not be loaded");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(std::max(512, (depth + steps + 2 + 255) / 256 * 256));
  params.n_batch = params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = threads;
  params.type_k = params.type_v = cache_type(type);
  params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) fail("no context (a quantised V cache needs flash attention)");
  // As llama-bench: one pool of threads for all steps.
  ggml_threadpool_params pool_params = ggml_threadpool_params_default(threads);
  ggml_threadpool* pool = ggml_threadpool_new(&pool_params);
  llama_attach_threadpool(context, pool, nullptr);

  std::vector<llama_token> tokens =
      random_tokens(llama_model_get_vocab(model), depth + steps + 3 + kSeedTokens);
  fill(context, tokens, depth, real);
  std::vector<double> ms;
  for (int i = 0; i < steps + 2; ++i) {
    const auto start = Clock::now();
    decode(context, &tokens[depth + i], 1);
    llama_synchronize(context);
    if (llama_get_logits(context) == nullptr) fail("no logits");
    // Two steps warm up.
    if (i >= 2) {
      ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  }
  const std::size_t state = llama_state_seq_get_size(context, 0);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"bench\":\"decode\",\"policy\":\"llama.cpp %s "
      "fa%d\",\"ctx\":%d,\"batch\":1,\"threads\":%d,"
      "\"tpot_ms\":{\"min\":%.3f,\"median\":%.3f,\"p95\":%.3f},\"kv_bytes\":%zu,"
      "\"peak_rss_bytes\":%lld,\"n\":%d,\"synthetic\":%s}\n",
      type.c_str(), flash ? 1 : 0, depth, threads, quantile(ms, 0.0), quantile(ms, 0.5),
      quantile(ms, 0.95), state, static_cast<long long>(usage.ru_maxrss) * 1024, steps,
      real || depth <= kSeedTokens ? "false" : "true");
  llama_detach_threadpool(context);
  llama_free(context);
  ggml_threadpool_free(pool);
  llama_model_free(model);
  return 0;
}
