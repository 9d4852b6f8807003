// What compression keeps of facts that a model needs, in seconds: a detector of regressions in
// codec, router, kernels and cache. Its circuit was shaped by its training, so nothing here ranks
// methods (tools/recall_model/README.md).
//
// Thresholds were fitted to models/recall/recall-q8_0.gguf with kQuestions questions a cell. The
// measured value stands beside each; the standard error of a share of 400 is at most 0.025 (0.009
// near 0.97), and other instruction sets round differently, so each leaves three of them.
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "recall_runner.h"

namespace qevict {
namespace {

using V = RecallVocabulary;

constexpr int kQuestions = 400;

class RecallAccuracy : public RecallTest {
 protected:
  RecallScore measure(const std::string& what, const CacheConfig& config,
                      const RecallShape& shape) {
    const RecallScore score = ask(config, shape, kQuestions);
    std::printf("  %s\n", describe(what, score).c_str());
    return score;
  }

  // 512 tokens of facts alone, without "the code of".
  static RecallShape dense_facts() {
    RecallShape shape;
    shape.n_tokens = 512;
    shape.dense = true;
    shape.filler_share = 0.0;
    return shape;
  }

  // n facts about keys that the prompt does not mention.
  static std::vector<RecallFact> other_facts(const RecallPrompt& prompt, int n) {
    std::set<TokenId> taken;
    for (const RecallFact& fact : prompt.facts) taken.insert(fact.key);
    std::vector<RecallFact> facts;
    for (TokenId key = V::kFirstKey; static_cast<int>(facts.size()) < n; ++key) {
      const int i = static_cast<int>(facts.size());
      if (taken.contains(key)) continue;
      facts.push_back({key, {V::kFirstValue + i * 37 % V::kValues, V::kFirstValue + i * 53 % 191}});
    }
    return facts;
  }

  // Reads the prompt, then the facts token by token, a window each. "" or what went wrong.
  static std::string feed_prompt(Session& session, const std::vector<TokenId>& prompt,
                                 const std::vector<RecallFact>& facts) {
    std::vector<TokenId> tokens;
    const auto add = [&](const RecallFact* fact, const RecallFact* next) {
      const TokenId filler = V::kFirstFiller + static_cast<TokenId>(tokens.size() % V::kFiller);
      tokens.push_back(fact != nullptr ? fact->values[0] : filler);
      tokens.push_back(fact != nullptr ? fact->values[1] : filler + 1);
      tokens.push_back(V::kStop);
      tokens.insert(tokens.end(), 4, filler);
      tokens.push_back(next != nullptr ? next->key : filler);
    };
    add(nullptr, facts.data());
    for (std::size_t i = 0; i < facts.size(); ++i) {
      add(&facts[i], i + 1 < facts.size() ? &facts[i + 1] : nullptr);
    }
    const int room = static_cast<int>(tokens.size() + facts.size() * kRecallQuestionTokens);
    if (const auto s = session.prefill(prompt, room, {}); !s) return s.error().message;
    for (const TokenId token : tokens) {
      if (const auto s = session.decode(token); !s) return s.error().message;
    }
    return "";
  }
};

TEST_F(RecallAccuracy, FullCacheAnswersEverythingUpTo4096Tokens) {
  for (const int n_tokens : {512, 1024, 2048, 4096}) {
    RecallShape shape;
    shape.n_tokens = n_tokens;
    const std::string what = "full cache, " + std::to_string(n_tokens) + " tokens";
    EXPECT_GE(measure(what, full_cache(), shape).accuracy(), 0.97);  // 1.000
  }
}

// 2048 tokens, 40 % of them filler.
TEST_F(RecallAccuracy, QuantizedTierKeepsWhatHardEvictionLoses) {
  const double evict = measure("eviction only, 20 %", eviction_only(0.2), {}).accuracy();
  const double ours = measure("qevict, 20 %", qevict_cache(0.2), {}).accuracy();
  EXPECT_GE(ours, 0.9);           // 0.970
  EXPECT_LE(evict, 0.5);          // 0.405: the ranking is good ...
  EXPECT_GE(evict, 0.3);          // ... but does not replace bytes
  EXPECT_GE(ours - evict, 0.35);  // 0.565
}

// The nats show blur that leaves the first word as it is: 0.0014 with the full cache.
TEST_F(RecallAccuracy, Int4EverywhereAnswersAlmostEverything) {
  const RecallScore score = measure("INT4", quantized_everywhere(4), {});
  EXPECT_GE(score.accuracy(), 0.97);        // 1.000
  EXPECT_LE(score.nats_per_word(), 0.003);  // 0.0015
  const RecallScore dense = measure("INT4, dense", quantized_everywhere(4), dense_facts());
  EXPECT_GE(dense.accuracy(), 0.95);  // 0.990
}

TEST_F(RecallAccuracy, Int2EverywhereAnswersAlmostEverything) {
  const RecallScore score = measure("INT2", quantized_everywhere(2), {});
  EXPECT_GE(score.accuracy(), 0.97);       // 1.000
  EXPECT_LE(score.nats_per_word(), 0.02);  // 0.0037
  const RecallScore dense = measure("INT2, dense", quantized_everywhere(2), dense_facts());
  EXPECT_GE(dense.accuracy(), 0.93);  // 0.988
}

// Facts read one token at a time, each across the border of two windows: [V1 V2 . x x x x K]. With
// no local zone the key's window is quantised before the values come, so that a value finds "the
// token before me" (layer 0, a matter of positions alone) among Quantized keys only: their RoPE.
TEST_F(RecallAccuracy, FactsReadAcrossQuantizedWindowsAreFound) {
  CacheConfig config = quantized_everywhere(4);
  config.n_local = 0;
  RecallShape shape;
  shape.n_tokens = config.n_sink + 31 * config.window;
  RecallScore total;
  while (total.asked < kQuestions) {
    RecallPrompt prompt = make_recall_prompt(shape);
    const std::vector<RecallFact> facts = other_facts(prompt, 60);
    auto session = engine_->create_session(config);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    ASSERT_EQ(feed_prompt(**session, prompt.tokens, facts), "");
    const auto score = ask_facts(**session, facts);
    ASSERT_TRUE(score.has_value()) << score.error().message;
    total += *score;
    ++shape.seed;
  }
  std::printf("  %s\n", describe("INT4, read across windows", total).c_str());
  EXPECT_GE(total.accuracy(), 0.95);  // 0.998
}

}  // namespace
}  // namespace qevict
