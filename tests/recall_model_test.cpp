// The recall model as a file: its vocabulary, and its logits beside libllama's on the same bytes.
#include <cstdio>

#include "libllama_oracle.h"
#include "recall_runner.h"

namespace qevict {
namespace {

using V = RecallVocabulary;

class RecallModel : public RecallTest {};

TEST_F(RecallModel, IsAccepted) {
  const Status status = check_recall_model(*engine_);
  EXPECT_TRUE(status.has_value()) << status.error().message;
  EXPECT_EQ(engine_->hparams().arch, "llama");
  EXPECT_GE(engine_->ctx_size(), 8192);
}

TEST_F(RecallModel, EveryWordIsOneTokenAndRoundTrips) {
  const Tokenizer& tokenizer = engine_->tokenizer();
  ASSERT_EQ(tokenizer.n_vocab(), V::kSize);
  std::string text;
  std::vector<TokenId> all;
  for (TokenId id = V::kThe; id < V::kFirstFiller + V::kFiller; ++id) {
    const std::string word = tokenizer.piece(id);
    ASSERT_TRUE(word.starts_with(' ')) << id;
    EXPECT_EQ(tokenizer.encode(word, false, false).value(), std::vector<TokenId>{id}) << word;
    text += word;
    all.push_back(id);
  }
  EXPECT_EQ(tokenizer.encode(text, false, false).value(), all);
  EXPECT_EQ(tokenizer.decode(all), text);
  all.insert(all.begin(), V::kBegin);
  EXPECT_EQ(tokenizer.encode(text, true, false).value(), all);
}

TEST_F(RecallModel, OtherAsciiTextRoundTripsLetterByLetter) {
  const Tokenizer& tokenizer = engine_->tokenizer();
  for (const std::string text : {"the code, of Words it never saw: 42!\n", " harbors ~[x]"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false, false).value()), text);
  }
}

TEST_F(RecallModel, PromptsAreTextOfTheTokenizer) {
  RecallShape shape;
  shape.n_tokens = 777;
  const RecallPrompt prompt = make_recall_prompt(shape);
  ASSERT_EQ(prompt.tokens.size(), 777U);
  const Tokenizer& tokenizer = engine_->tokenizer();
  EXPECT_EQ(tokenizer.encode(tokenizer.decode(prompt.tokens), true, false).value(), prompt.tokens);
}

// Along a prompt of 480 tokens and a question: fp16 cache, int8 activations (Q8_0 weights), where a
// last-bit difference in attention moves whole steps; libllama's own two attention paths are the
// yardstick (docs/decisions/0008).
TEST_F(RecallModel, LogitsEqualLibllamas) {
  const auto file = RecallModelFile::create();
  ASSERT_TRUE(file.has_value());
  Libllama llama(file->path(), true);
  ASSERT_TRUE(llama.ok());
  Agreement ours, own;
  GreedyTokens kept;
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    RecallShape shape;
    shape.n_tokens = 480;  // one batch of libllama
    shape.seed = seed;
    const RecallPrompt prompt = make_recall_prompt(shape);
    std::vector<TokenId> asked;
    for (int i = 0; i < 8; ++i) {
      const RecallFact& fact = prompt.facts[i];
      asked.insert(asked.end(), {V::kAsk, fact.key, fact.values[0], fact.values[1], V::kStop});
    }
    const int n = static_cast<int>(asked.size());
    std::vector<TokenId> same;
    const auto reference = llama.greedy(prompt.tokens, n, same, GGML_TYPE_F16, false, &asked);
    const auto other = llama.greedy(prompt.tokens, n, same, GGML_TYPE_F16, true, &asked);
    auto session = engine_->create_session(full_cache());
    ASSERT_TRUE(session.has_value()) << session.error().message;
    GenerateOptions options;
    options.forced = asked;
    options.n_predict = n;
    std::vector<float> logits;
    options.on_logits = [&](int, std::span<const float> row) {
      logits.insert(logits.end(), row.begin(), row.end());
    };
    ASSERT_TRUE((*session)->generate(prompt.tokens, options).has_value());
    ASSERT_EQ(logits.size(), reference.size());
    ours.add(reference, logits, V::kSize);
    own.add(reference, other, V::kSize);
    kept.add(reference, logits, V::kSize, 0.5);
  }
  std::printf(
      "  mean KL %.1e (libllama's flash path %.1e), largest logit difference %.2f (%.2f), "
      "clear first tokens kept %d of %d\n",
      ours.mean_kl, own.mean_kl, ours.max_difference, own.max_difference, kept.clear - kept.wrong,
      kept.clear);
  EXPECT_LT(ours.mean_kl, std::max(2e-5, 1.5 * own.mean_kl));
  EXPECT_EQ(kept.wrong, 0);
  EXPECT_GT(kept.clear, 40);
}

}  // namespace
}  // namespace qevict
