// Sessions filled from a captured prompt against sessions that read it.
#include "engine/prompt_snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <set>

#include "engine/engine.h"
#include "gguf_writer.h"
#include "policies/registry.h"

namespace qevict {
namespace {

constexpr int kPrompt = 331, kNew = 30;

class PromptSnapshots : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string path = temp_model_path("snapshot");
    ASSERT_EQ(write_tiny_model(path, TinyModel{}), "");
    EngineOptions options;
    options.model_path = path;
    options.n_threads = 1;
    options.batch_size = 100;
    auto loaded = Engine::load(options);
    std::filesystem::remove(path);  // stays mapped
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    engine = std::move(*loaded);
  }
  static void TearDownTestSuite() { engine.reset(); }

  static std::vector<TokenId> tokens(int first, int n) {
    std::vector<TokenId> all;
    for (int i = first; i < first + n; ++i) {
      all.push_back(5 + static_cast<TokenId>((i * 37L + i * i % 11) % (tiny_vocab_size() - 5)));
    }
    return all;
  }

  static CacheConfig config(const std::string& policy, double ratio = 0.5) {
    CacheConfig c;
    c.policy = policy;
    c.budget = {KvBudget::Unit::Ratio, ratio};
    return c;
  }

  static std::shared_ptr<const PromptSnapshot> capture(std::span<const CacheConfig> configs) {
    const auto options = CaptureOptions::covering(configs);
    EXPECT_TRUE(options.has_value()) << options.error().message;
    const auto made = engine->capture_prompt(tokens(0, kPrompt), *options);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return *made;
  }

  static std::unique_ptr<Session> session(const CacheConfig& config) {
    auto made = engine->create_session(config);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return std::move(*made);
  }

  static void expect_close(std::span<const float> a, std::span<const float> b, float tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
  }

  // Masses are rounded differently, so that near ties may fall the other way.
  static void expect_same_tiers(const KvCache& a, const KvCache& b) {
    EXPECT_EQ(a.bytes().total(), b.bytes().total());
    for (int layer = 0; layer < a.n_layers(); ++layer) {
      for (int u = 0; u < a.units_per_layer(); ++u) {
        const TierSlab& x = a.unit(layer, u).full();
        const TierSlab& y = b.unit(layer, u).full();
        const std::set<WindowId> other(y.ids().begin(), y.ids().end());
        const auto same =
            std::ranges::count_if(x.ids(), [&](WindowId w) { return other.contains(w); });
        EXPECT_GE(same * 50, x.size() * 49) << "layer " << layer << " unit " << u;
        EXPECT_EQ(a.unit(layer, u).recent().n_tokens(), b.unit(layer, u).recent().n_tokens());
      }
    }
  }

  static std::unique_ptr<Engine> engine;
};
std::unique_ptr<Engine> PromptSnapshots::engine;

TEST_F(PromptSnapshots, FillASessionAsReadingThePromptDoesWithEveryPolicy) {
  std::vector<CacheConfig> configs;
  for (const PolicySpec& policy : policies()) configs.push_back(config(policy.name));
  const auto snapshot = capture(configs);
  EXPECT_EQ(snapshot->n_tokens(), kPrompt);
  for (const CacheConfig& c : configs) {
    SCOPED_TRACE(c.policy);
    const auto read = session(c), filled = session(c);
    const auto a = read->prefill(tokens(0, kPrompt), kNew, {});
    const auto b = filled->prefill(*snapshot, kNew);
    ASSERT_TRUE(a.has_value()) << a.error().message;
    ASSERT_TRUE(b.has_value()) << b.error().message;
    ASSERT_NO_FATAL_FAILURE(expect_close(*a, *b, 1e-3F));
    expect_same_tiers(read->cache(), filled->cache());
    EXPECT_EQ(read->kv_stats().evicted_windows, filled->kv_stats().evicted_windows);
    for (int i = 0; i < kNew; ++i) {
      const auto x = read->decode(tokens(kPrompt + i, 1)[0]);
      const auto y = filled->decode(tokens(kPrompt + i, 1)[0]);
      ASSERT_TRUE(x.has_value() && y.has_value());
      if (i == 0) ASSERT_NO_FATAL_FAILURE(expect_close(*x, *y, 0.05F));
    }
    // A question after the context is an ordinary appended prompt.
    ASSERT_TRUE(filled->prefill(tokens(400, 40), 10, {}).has_value());
    EXPECT_EQ(filled->n_tokens(), kPrompt + kNew + 40);
    ASSERT_TRUE(filled->decode(7).has_value());
  }
}

// Every row that attention would read, head after head.
std::vector<fp16_t> rows_of(const RowCodec& codec, const Geometry& g) {
  std::vector<fp16_t> all, k(std::size_t{kCodecChunk} * g.head_dim), v(k.size());
  for (int h = 0; h < g.n_kv_heads; ++h) {
    for (int first = 0; first < codec.n_tokens(); first += kCodecChunk) {
      const int n = std::min(kCodecChunk, codec.n_tokens() - first);
      codec.load(h, first, n, {k.data(), v.data(), kCodecChunk});
      for (int i = 0; i < n; ++i) {
        for (int c = 0; c < g.head_dim; ++c) {
          all.push_back(k[static_cast<std::size_t>(c) * kCodecChunk + i]);
          all.push_back(v[static_cast<std::size_t>(i) * g.head_dim + c]);
        }
      }
    }
  }
  return all;
}

// Attention sums a prompt's rows in an order that hangs on sinks and windows. With those that a
// capture has, a session that reads the prompt makes the same bits, so that whatever a codec is
// told wrongly (another probe of ZipCache's, say) is seen, in whichever layer.
TEST_F(PromptSnapshots, FillAQuantiserBitForBit) {
  for (const char* policy : {"kivi", "kvquant", "zipcache"}) {
    SCOPED_TRACE(policy);
    CacheConfig c = config(policy);
    c.n_sink = 0;
    c.window = 1;
    const auto snapshot = capture(std::span(&c, 1));
    const auto read = session(c), filled = session(c);
    const auto a = read->prefill(tokens(0, kPrompt), kNew, {});
    const auto b = filled->prefill(*snapshot, kNew);
    ASSERT_TRUE(a.has_value() && b.has_value());
    ASSERT_NO_FATAL_FAILURE(expect_close(*a, *b, 0.0F));
    for (int layer = 0; layer < read->cache().n_layers(); ++layer) {
      const Geometry& g = read->cache().geometry();
      EXPECT_EQ(rows_of(*read->cache().codec(layer), g), rows_of(*filled->cache().codec(layer), g))
          << "layer " << layer;
    }
    for (int i = 0; i < kNew; ++i) {
      const auto x = read->decode(tokens(kPrompt + i, 1)[0]);
      const auto y = filled->decode(tokens(kPrompt + i, 1)[0]);
      ASSERT_TRUE(x.has_value() && y.has_value());
      ASSERT_NO_FATAL_FAILURE(expect_close(*x, *y, 0.0F));
    }
  }
}

TEST_F(PromptSnapshots, GenerateFromOneAsFromThePrompt) {
  const CacheConfig c = config("full");
  const auto snapshot = capture(std::span(&c, 1));
  GenerateOptions options;
  options.n_predict = 12;
  const auto read = session(c)->generate(tokens(0, kPrompt), options);
  const auto filled = session(c)->generate(*snapshot, options);
  ASSERT_TRUE(read.has_value() && filled.has_value());
  EXPECT_EQ(filled->prompt_tokens, kPrompt);
  EXPECT_EQ(filled->tokens, read->tokens);
  EXPECT_EQ(filled->kv.resident_bytes, read->kv.resident_bytes);
  // fp16 rows and logits; the full cache asks for no masses.
  const std::size_t rows = static_cast<std::size_t>(read->kv.full_cache_bytes) / read->kv.n_tokens;
  EXPECT_EQ(snapshot->bytes(), rows * kPrompt + snapshot->logits().size() * sizeof(float));
}

TEST_F(PromptSnapshots, RefuseWhatTheyCannotFill) {
  const CacheConfig full = config("full"), mass = config("qevict");
  const auto snapshot = capture(std::span(&full, 1));
  const auto hungry = session(mass);
  const auto refused = hungry->prefill(*snapshot, 5);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::BadInput);
  EXPECT_NE(refused.error().message.find("qevict"), std::string::npos);
  EXPECT_EQ(hungry->n_tokens(), 0);
  const auto used = session(full);
  ASSERT_TRUE(used->prefill(*snapshot, 5).has_value());
  EXPECT_FALSE(used->prefill(*snapshot, 5).has_value());
  EXPECT_EQ(used->n_tokens(), kPrompt);

  CacheConfig power = mass;
  power.ranker = {Ranker::Kind::PNorm, 2.0};
  const CacheConfig both[] = {mass, power};
  EXPECT_FALSE(CaptureOptions::covering(both).has_value());
  EXPECT_FALSE(engine->capture_prompt({}, {}).has_value());
  const std::atomic<bool> stop = true;
  CaptureOptions cancelled;
  cancelled.cancel = &stop;
  const auto none = engine->capture_prompt(tokens(0, 20), cancelled);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::Interrupted);
}

TEST_F(PromptSnapshots, HoldThePowerThatARankerSums) {
  CacheConfig c = config("qevict", 0.3);
  c.ranker = {Ranker::Kind::PNorm, 2.0};
  const auto snapshot = capture(std::span(&c, 1));
  const auto read = session(c), filled = session(c);
  ASSERT_TRUE(read->prefill(tokens(0, kPrompt), kNew, {}).has_value());
  ASSERT_TRUE(filled->prefill(*snapshot, kNew).has_value());
  expect_same_tiers(read->cache(), filled->cache());
}

}  // namespace
}  // namespace qevict
