// The main job on small models with random weights, through the engine: exactness, bytes,
// isolation.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "engine/engine.h"
#include "gguf_writer.h"

namespace qevict {
namespace {

// A model file that lives as long as the test.
class TinyFile {
 public:
  explicit TinyFile(const TinyModel& model)
      : path_(temp_model_path("main_job_" + model.arch + std::to_string(model.seed))) {
    const std::string error = write_tiny_model(path_, model);
    EXPECT_EQ(error, "");
  }
  ~TinyFile() { std::filesystem::remove(path_); }
  TinyFile(const TinyFile&) = delete;
  TinyFile& operator=(const TinyFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::unique_ptr<Engine> load(const std::string& path, int threads) {
  EngineOptions options;
  options.model_path = path;
  options.n_threads = threads;
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.has_value()) << (engine ? "" : engine.error().message);
  return engine ? std::move(*engine) : nullptr;
}

CacheConfig config_with(double ratio, const std::string& policy = "qevict") {
  CacheConfig config;
  config.policy = policy;
  config.budget = {KvBudget::Unit::Ratio, ratio};
  return config;
}

std::vector<TokenId> some_tokens(int n, unsigned seed = 1) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) {
    seed = seed * 1664525U + 1013904223U;
    tokens.push_back(5 + static_cast<TokenId>(seed >> 8) % (tiny_vocab_size() - 5));
  }
  return tokens;
}

struct Outcome {
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> logits;
  CacheStats kv;
  friend bool operator==(const Outcome& a, const Outcome& b) {
    return a.tokens == b.tokens && a.logits == b.logits;
  }
};

Outcome generate(Session& session, const std::vector<TokenId>& prompt, int n) {
  Outcome outcome;
  GenerateOptions options;
  options.n_predict = n;
  options.ignore_eos = true;
  options.on_logits = [&](int, std::span<const float> logits) {
    outcome.logits.emplace_back(logits.begin(), logits.end());
  };
  auto result = session.generate(prompt, options);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  if (result) {
    outcome.tokens = result->tokens;
    outcome.kv = result->kv;
  }
  return outcome;
}

Outcome run(Engine& engine, const CacheConfig& config, int n_prompt, int n) {
  auto session = engine.create_session(config);
  EXPECT_TRUE(session.has_value()) << (session ? "" : session.error().message);
  return generate(**session, some_tokens(n_prompt), n);
}

std::vector<TinyModel> models() {
  TinyModel llama, qwen2, qwen3;
  llama.n_kv_heads = 4;
  llama.rope_factors = true;
  qwen2.arch = "qwen2";
  qwen2.n_heads = 7;
  qwen2.n_kv_heads = 1;
  qwen2.key_bias = 40.0F;
  qwen2.type = "q8_0";
  qwen2.n_embd = 256;
  qwen3.arch = "qwen3";
  qwen3.head_dim = 128;
  qwen3.tied = false;
  return {llama, qwen2, qwen3};
}

TEST(MainJob, AmpleBudgetGivesTheBitsOfTheFullCache) {
  for (const TinyModel& model : models()) {
    const TinyFile file(model);
    const auto engine = load(file.path(), 1);
    ASSERT_NE(engine, nullptr);
    const Outcome full = run(*engine, config_with(0.2, "full"), 300, 40);
    const Outcome ample = run(*engine, config_with(1.0), 300, 40);
    EXPECT_EQ(full, ample) << model.arch;
    EXPECT_TRUE(ample.kv.uncompressed);
    EXPECT_EQ(full.kv.resident_bytes, full.kv.full_cache_bytes) << model.arch;
  }
}

TEST(MainJob, SameBitsOnOneAndTwoThreadsAndWhenRepeated) {
  const TinyFile file(models()[1]);
  const auto one = load(file.path(), 1);
  const auto two = load(file.path(), 2);
  ASSERT_TRUE(one && two);
  const Outcome first = run(*one, config_with(0.2), 700, 40);
  EXPECT_EQ(first, run(*one, config_with(0.2), 700, 40));
  EXPECT_EQ(first, run(*two, config_with(0.2), 700, 40));
}

TEST(MainJob, BytesFollowTheFormulaAtEveryEvent) {
  TinyModel model;
  model.n_kv_heads = 2;
  const TinyFile file(model);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  constexpr int kPrompt = 1003, kPredict = 60;
  for (const double ratio : {0.05, 0.1, 0.2, 0.4}) {
    for (const bool strict : {false, true}) {
      CacheConfig config = config_with(ratio);
      config.strict_budget = strict;
      auto session = engine->create_session(config);
      ASSERT_TRUE(session.has_value());
      const Geometry g = (*session)->cache().geometry();
      int events = 0;
      (*session)->set_trace([&](const LayerEvent& e) {
        ++events;
        EXPECT_EQ(e.bytes.full, e.full.size() * g.full_window_bytes());
        EXPECT_EQ(e.bytes.quantized, e.quantized.size() * g.quantized_window_bytes());
        EXPECT_EQ(e.bytes.sink, 5 * g.token_bytes());
        const auto layer_budget =
            static_cast<std::size_t>((*session)->cache().budget().layer_bytes);
        const std::size_t remainder = (kPrompt - 5 - 32) % 8;
        EXPECT_LE(e.bytes.total(), layer_budget + (strict ? 0 : remainder * g.token_bytes()));
      });
      const auto logits = (*session)->prefill(some_tokens(kPrompt), kPredict, {});
      ASSERT_TRUE(logits.has_value()) << logits.error().message;
      std::size_t peak = 0;
      for (int i = 0; i < kPredict - 1; ++i) {
        ASSERT_TRUE((*session)->decode(10 + i).has_value());
        peak = std::max(peak, (*session)->cache().bytes().total());
      }
      EXPECT_EQ(events, (1 + (kPredict - 1) / 8) * 2);
      const BudgetPlan& plan = (*session)->cache().budget();
      const std::size_t waiting = (kPrompt - 5 - 32) % 8 + 8;
      const std::size_t slack = strict ? 0 : waiting * g.token_bytes() * 2;
      EXPECT_LE(peak, static_cast<std::size_t>(plan.budget_bytes) + slack);
    }
  }
}

TEST(MainJob, SecondTurnEqualsTheSameTurnsRunAgain) {
  const TinyFile file(models()[0]);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  std::vector<Outcome> second;
  for (int i = 0; i < 2; ++i) {
    auto session = engine->create_session(config_with(0.3));
    ASSERT_TRUE(session.has_value());
    generate(**session, some_tokens(400), 21);
    second.push_back(generate(**session, some_tokens(90, 7), 30));
    // 400 + 20 fed, the 21st token leads the second prompt, 90, 29 fed.
    EXPECT_EQ((*session)->n_tokens(), 400 + 20 + 1 + 90 + 29);
  }
  EXPECT_EQ(second[0], second[1]);
}

TEST(MainJob, CancelledPromptLeavesTheConversationAsItWas) {
  const TinyFile file(models()[0]);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  std::vector<Outcome> next;
  for (const bool interrupted : {false, true}) {
    auto session = engine->create_session(config_with(0.3));
    ASSERT_TRUE(session.has_value());
    generate(**session, some_tokens(400), 20);
    if (interrupted) {
      std::atomic<bool> cancel{false};
      GenerateOptions options;
      options.cancel = &cancel;
      // The first layer is compressed by then, the second is not.
      options.prefill_progress = [&](int done, int total) { cancel = done == total / 2; };
      const auto result = (*session)->generate(some_tokens(1200, 3), options);
      ASSERT_FALSE(result.has_value());
      EXPECT_EQ(result.error().code, ErrorCode::Interrupted);
    }
    next.push_back(generate(**session, some_tokens(50, 9), 30));
  }
  EXPECT_EQ(next[0], next[1]);
}

TEST(MainJob, CancelledFirstPromptLeavesAnEmptySession) {
  const TinyFile file(models()[0]);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  auto session = engine->create_session(config_with(0.3));
  ASSERT_TRUE(session.has_value());
  std::atomic<bool> cancel{true};
  GenerateOptions options;
  options.cancel = &cancel;
  EXPECT_FALSE((*session)->generate(some_tokens(300), options).has_value());
  EXPECT_EQ((*session)->n_tokens(), 0);
  EXPECT_EQ((*session)->kv_stats().resident_bytes, 0);
  EXPECT_EQ(generate(**session, some_tokens(300), 20), run(*engine, config_with(0.3), 300, 20));
}

TEST(MainJob, CompressionReallyChangesWhatIsRead) {
  const TinyFile file(models()[0]);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  const Outcome full = run(*engine, config_with(0.2, "full"), 600, 20);
  const Outcome small = run(*engine, config_with(0.1), 600, 20);
  EXPECT_EQ(full.logits[0], small.logits[0]);  // the first token comes from the whole prompt
  EXPECT_NE(full.logits[1], small.logits[1]);
  EXPECT_LT(small.kv.resident_bytes, full.kv.resident_bytes / 5);
  EXPECT_GT(small.kv.evicted_windows, 0);
  EXPECT_GT(small.kv.quantized_windows, 0);
}

TEST(MainJob, RequestsThatCannotBeServedAreRefused) {
  TinyModel model;
  model.n_ctx = 512;
  const TinyFile file(model);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  auto session = engine->create_session(config_with(0.3));
  ASSERT_TRUE(session.has_value());
  const auto refused = [&](const std::vector<TokenId>& prompt, GenerateOptions options) {
    const auto result = (*session)->generate(prompt, options);
    return result.has_value() ? std::string() : result.error().message;
  };
  EXPECT_NE(refused({}, {}), "");
  EXPECT_NE(refused(some_tokens(512), {}).find("context"), std::string::npos);
  GenerateOptions none;
  none.n_predict = 0;
  EXPECT_NE(refused(some_tokens(10), none), "");
  GenerateOptions forced;
  forced.forced = {1, 2, tiny_vocab_size()};
  EXPECT_NE(refused(some_tokens(10), forced).find("vocabulary"), std::string::npos);
  EXPECT_FALSE(engine->create_session(config_with(0.2, "no_such")).has_value());
  EXPECT_EQ((*session)->n_tokens(), 0);
}

TEST(MainJob, StepsThatCannotBeTakenLeaveTheSessionAlone) {
  const TinyFile file(models()[0]);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  std::vector<std::vector<float>> after;
  for (const bool disturbed : {false, true}) {
    auto session = engine->create_session(config_with(0.3));
    ASSERT_TRUE(session.has_value());
    EXPECT_FALSE((*session)->decode(7).has_value());  // no prompt yet
    ASSERT_TRUE((*session)->prefill(some_tokens(100), 2, {}).has_value());
    if (disturbed) {
      EXPECT_FALSE((*session)->decode(tiny_vocab_size()).has_value());
      EXPECT_FALSE((*session)->decode(-1).has_value());
    }
    const auto logits = (*session)->decode(7);
    ASSERT_TRUE(logits.has_value());
    after.emplace_back(logits->begin(), logits->end());
    ASSERT_TRUE((*session)->decode(8).has_value());
    const auto beyond = (*session)->decode(9);  // max_new was 2
    ASSERT_FALSE(beyond.has_value());
    EXPECT_EQ(beyond.error().code, ErrorCode::BadInput);
    EXPECT_EQ((*session)->n_tokens(), 102);
  }
  EXPECT_EQ(after[0], after[1]);
}

TEST(MainJob, ReserveIsBoundedByTheContext) {
  const TinyFile file(models()[0]);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  CacheConfig config = config_with(0.3);
  config.n_local = 1000000;
  const Outcome outcome = run(*engine, config, 20, 5);
  EXPECT_LT(outcome.kv.reserved_bytes, 40 * 4 * 4 * 64 * 2);
}

TEST(MainJob, TraceOfACancelledPromptIsNotTold) {
  const TinyFile file(models()[0]);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  auto session = engine->create_session(config_with(0.3));
  ASSERT_TRUE(session.has_value());
  int events = 0;
  (*session)->set_trace([&](const LayerEvent&) { ++events; });
  std::atomic<bool> cancel{false};
  GenerateOptions options;
  options.cancel = &cancel;
  options.prefill_progress = [&](int done, int total) { cancel = done == total / 2; };
  EXPECT_FALSE((*session)->generate(some_tokens(1200, 3), options).has_value());
  EXPECT_EQ(events, 0);
  generate(**session, some_tokens(300), 9);
  EXPECT_EQ(events, 4);  // after the prompt and after 8 steps, two layers
}

TEST(MainJob, ForcedTokensAreFedAndScored) {
  const TinyFile file(models()[0]);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  auto session = engine->create_session(config_with(0.3));
  GenerateOptions options;
  options.forced = some_tokens(12, 5);
  options.n_predict = 12;
  options.logprobs = 3;
  const auto result = (*session)->generate(some_tokens(100), options);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->tokens, options.forced);
  ASSERT_EQ(result->logprobs.size(), 12U);
  EXPECT_EQ(result->logprobs[0].size(), 3U);
  EXPECT_EQ((*session)->n_tokens(), 111);
}

// Twenty thousand tokens on a fixed budget: flat memory, mass that adds up, positions that stand.
TEST(SlowMainJob, TwentyThousandTokensOnAFixedBudget) {
  TinyModel model;
  model.n_ctx = 32768;
  model.n_heads = 2;
  model.n_kv_heads = 1;
  model.head_dim = 64;
  model.n_ff = 64;
  const TinyFile file(model);
  const auto engine = load(file.path(), 1);
  ASSERT_NE(engine, nullptr);
  CacheConfig config = config_with(0.2);
  config.budget = {KvBudget::Unit::Tokens, 400};
  config.n_sink = 0;  // sinks take mass that is not counted
  auto session = engine->create_session(config);
  ASSERT_TRUE(session.has_value());
  constexpr int kPrompt = 200, kSteps = 20000;
  ASSERT_TRUE((*session)->prefill(some_tokens(kPrompt), kSteps, {}).has_value());
  const KvCache& cache = (*session)->cache();
  std::set<std::size_t> resident;  // bytes after each event of the second half
  std::int64_t rss_half = 0;
  double step_mass = 0.0;
  const auto live_mass = [&](int layer) {
    double sum = 0.0;
    for (const double m : cache.layer(layer).full().mass()) sum += m;
    for (const double m : cache.layer(layer).quantized().mass()) sum += m;
    for (const double m : cache.layer(layer).local_mass()) sum += m;
    return sum;
  };
  for (int i = 0; i < kSteps; ++i) {
    const bool event = (i + 1) % 8 == 0;
    const double before = live_mass(0);
    ASSERT_TRUE((*session)->decode(5 + i % 200).has_value());
    // A step adds a mass of one; an event also drops what the evicted windows had.
    if (!event) step_mass = std::max(step_mass, std::fabs(live_mass(0) - before - 1.0));
    if (event && i > kSteps / 2) resident.insert(cache.bytes().total());
    if (i == kSteps / 2) rss_half = resident_set_bytes();
    for (const WindowId w : cache.layer(1).full().ids()) ASSERT_LT(w * 8, cache.n_tokens());
  }
  EXPECT_EQ(cache.n_tokens(), kPrompt + kSteps);
  EXPECT_EQ(resident.size(), 1U) << "bytes after an event must not drift";
  EXPECT_LT(step_mass, 1e-3);
  EXPECT_LT(resident_set_bytes() - rss_half, 4 << 20);
  EXPECT_LE(*resident.rbegin(), static_cast<std::size_t>(cache.budget().budget_bytes) +
                                    7 * cache.geometry().token_bytes() * cache.n_layers());
}

}  // namespace
}  // namespace qevict
