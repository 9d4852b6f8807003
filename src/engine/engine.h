// Load a model once, generate with compressed caches: what every frontend uses.
//
// Engine::load -> Engine::create_session -> Session::generate (again for the next chat turn).
// Thread safety: one engine, one thread (its sessions share the thread pool).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/mass_observer.h"
#include "kv/kv_cache.h"
#include "model/model.h"
#include "qevict/config.h"
#include "qevict/result.h"
#include "qevict/stats.h"

namespace qevict {

struct EngineOptions {
  std::string model_path;
  int n_threads = 0;  // 0: physical cores; at most the logical CPUs it may use
  bool repack = true;
  WeightRewrite rewrite = WeightRewrite::Auto;
  int batch_size = 512;                       // prompt tokens a block
  int ctx_size = 0;                           // 0: the model's
  std::function<void(float)> load_progress;   // 0..1
  const std::atomic<bool>* cancel = nullptr;  // also stops loading
};

// The shape of the model's attention with the configuration's windows and codes.
Geometry make_geometry(const HParams& hparams, const CacheConfig& config);

struct TokenLogprob {
  TokenId id = 0;
  double logprob = 0.0;
};

struct GenerateOptions {
  int n_predict = 256;
  SamplerOptions sampler;
  std::vector<std::string> stop;  // text is cut before the first match
  bool ignore_eos = false;        // bans every end-of-generation token
  int logprobs = 0;               // K most likely tokens of each distribution, before any ban
  std::vector<TokenId> forced;    // decode along these instead of sampling
  std::function<void(const std::string&)> on_text;  // complete UTF-8 pieces, as they come
  std::function<void(int, int)> prefill_progress;   // layer-blocks done, total
  // Called with the logits of every distribution drawn from (index 0: after the prompt).
  std::function<void(int, std::span<const float>)> on_logits;
  const std::atomic<bool>* cancel = nullptr;
};

// Failed: a step could not be computed; GenerateResult::failure says why.
enum class StopReason { Eos, Length, Stop, Interrupted, Failed };
const char* to_string(StopReason reason);

struct GenerateResult {
  int prompt_tokens = 0;
  std::vector<TokenId> tokens;  // generated or forced
  std::string text;             // without special tokens; cut before a stop string
  StopReason stop_reason = StopReason::Length;
  std::vector<std::vector<TokenLogprob>> logprobs;
  Timing timing;
  CacheStats kv;
  std::int64_t peak_rss_bytes = 0;
  std::int64_t rss_before_bytes = 0;         // when generate() was called
  std::int64_t rss_after_prefill_bytes = 0;  // workspace freed
  std::vector<std::string> warnings;
  // Set when decoding failed after some tokens: what was generated stands, the error is reported.
  std::optional<Error> failure;
};

// A prompt that was computed once (engine/prompt_snapshot.h); sessions of its engine are filled
// from it instead of reading it.
class PromptSnapshot;

// What a snapshot has to hold for the sessions that will be filled from it.
struct CaptureOptions {
  int last_queries = 0;  // the most that a policy looks at
  bool query_moments = false;
  int moments_from = 0;  // first position whose query counts
  bool mass = false;
  double mass_power = 1.0;                 // attention^power is summed
  bool key_range = false;                  // extremes of keys before RoPE, and of values
  int range_from = 0;                      // first position that counts for them
  std::vector<CacheConfig> quantisers;     // policies that may look at queries anywhere
  std::function<void(int, int)> progress;  // layer-blocks done, total
  const std::atomic<bool>* cancel = nullptr;

  // What caches of these configurations read. Errors: BadInput for an unknown policy or parameter,
  // or when two of them cannot share one snapshot (different powers of the mass).
  static Result<CaptureOptions> covering(std::span<const CacheConfig> configs);
};

class Session {
 public:
  virtual ~Session() = default;
  // Appends `prompt` and generates. An error or an interruption during the prompt leaves the
  // session as it was; an interruption while decoding keeps what was generated.
  virtual Result<GenerateResult> generate(std::span<const TokenId> prompt,
                                          const GenerateOptions& options) = 0;
  virtual CacheStats kv_stats() const = 0;
  // Positions in the cache, and the newest generated token that has not been fed yet (-1: none); it
  // becomes part of the next prompt.
  virtual int n_tokens() const = 0;
  virtual TokenId pending_token() const = 0;
  virtual void set_trace(KvCache::TraceSink sink) = 0;
  // Reads the attention of each head from the next prompt or step on; null: none. It outlives the
  // session or is taken back. Fused attention without row codecs only.
  virtual void set_observer(MassObserver* observer) = 0;
  // For tests and benchmarks: prompt only, then single steps. logits stay valid until the next
  // call.
  virtual Result<std::span<const float>> prefill(std::span<const TokenId> prompt, int max_new,
                                                 const GenerateOptions& options) = 0;
  virtual Result<std::span<const float>> decode(TokenId token) = 0;
  // As the ones above for an empty session and a captured prompt: budget, selection, quantising and
  // bytes are those of reading it; masses and logits differ in the last places. Errors also when
  // the session holds tokens, or the snapshot lacks what its policy reads or is another engine's.
  virtual Result<std::span<const float>> prefill(const PromptSnapshot& prompt, int max_new) = 0;
  virtual Result<GenerateResult> generate(const PromptSnapshot& prompt,
                                          const GenerateOptions& options) = 0;
  // For benchmarks: fills an empty session as a prompt of n tokens would, but with pseudo-random
  // keys, values and attention mass instead of the model's. Budget, routing, quantising and bytes
  // are the real ones; there are no logits.
  virtual Status prefill_synthetic(int n_tokens, int max_new, std::uint64_t seed) = 0;
  virtual const KvCache& cache() const = 0;
  virtual double attention_seconds() = 0;  // since the last call
};

struct BatchInput {
  Session* session = nullptr;
  TokenId token = 0;
};

// Decodes many sessions of one engine together, a token of each at a step: the weights are read
// once for all of them.
class Batch {
 public:
  virtual ~Batch() = default;
  // Feeds inputs[i].token to inputs[i].session, which must all be different sessions of this
  // engine. Result i is what Session::decode would have returned: the logits [n_vocab], valid until
  // the next call, or the error of that session, which leaves the others alone. Sessions may join
  // and leave between two calls. No allocation while the number of sessions stays the same, except
  // in routing events and right after one that made a cache larger than ever.
  virtual std::span<const Result<std::span<const float>>> decode(
      std::span<const BatchInput> inputs) = 0;
  // Since the last call: attention of all sequences on the first thread, and routing of all.
  virtual double attention_seconds() = 0;
  virtual double routing_seconds() = 0;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options);
  virtual ~Engine() = default;
  virtual const Model& model() const = 0;
  const HParams& hparams() const { return model().hparams(); }
  const Tokenizer& tokenizer() const { return model().tokenizer(); }
  virtual Result<std::unique_ptr<Session>> create_session(const CacheConfig& config) = 0;
  virtual std::unique_ptr<Batch> create_batch() = 0;
  // Computes a prompt once, uncompressed, for any number of sessions.
  virtual Result<std::shared_ptr<const PromptSnapshot>> capture_prompt(
      std::span<const TokenId> tokens, const CaptureOptions& options) = 0;
  // Bytes of weights that a decode step reads; 0 before the first step.
  virtual std::int64_t step_weight_bytes() const = 0;
  virtual int ctx_size() const = 0;
  virtual int n_threads() const = 0;
  virtual double load_ms() const = 0;
};

// Resident set of this process now and at its highest, from the operating system. Bytes.
std::int64_t resident_set_bytes();
std::int64_t peak_resident_set_bytes();

}  // namespace qevict
