// The full policy, through a session, against libllama along libllama's own greedy answer.
//
// A prompt in one batch, then 64 positions one token at a time: the way people use both. On F32
// files the mean KL must stay below 2e-5 and every greedy token with a lead above 0.1 must stand.
// On quantised files activations are rounded to int8, so that a last-bit difference moves whole
// steps: there libllama with an fp16 cache differs from libllama with an fp32 cache by 3e-4 to
// 1e-3, and that difference is the yardstick (and 0.5 the lead, as in the golden vectors'
// tolerances).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "engine/engine.h"
#include "gguf_writer.h"
#include "libllama_oracle.h"

namespace qevict {
namespace {

constexpr int kPositions = 64;

const char* const kQuestions[] = {
    "The lighthouse keeper wrote in his log every evening: the wind, the ships that passed, and "
    "what "
    "he had eaten. In the winter of the great storm he wrote nothing for nine days. Explain in a "
    "few "
    "sentences what may have happened.",
    "Write a Python function that returns the n-th Fibonacci number, and explain how it works.",
    "List the planets of the solar system with one fact about each of them."};

std::vector<TokenId> prompt_tokens(const Engine& engine, int index) {
  const Tokenizer& tokenizer = engine.tokenizer();
  std::string text = kQuestions[index];
  const bool chat = tokenizer.has_chat_template();
  if (chat) {
    const ChatMessage message{"user", text};
    text = tokenizer.apply_chat_template({&message, 1}, true).value_or(text);
  }
  auto tokens = tokenizer.encode(text, !chat, true);
  EXPECT_TRUE(tokens.has_value());
  return tokens ? *tokens : std::vector<TokenId>{};
}

void compare_along_greedy_answer(const std::string& path, bool quantised) {
  const double gap = quantised ? 0.5 : 0.1;
  EngineOptions options;
  options.model_path = path;
  options.n_threads = 1;
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  Libllama llama(path, true);
  ASSERT_TRUE(llama.ok());
  const int n_vocab = (*engine)->hparams().n_vocab;
  Agreement agreement, own;
  GreedyTokens kept;
  for (int p = 0; p < 3; ++p) {
    std::vector<TokenId> prompt = prompt_tokens(**engine, p);
    prompt.resize(std::min<std::size_t>(prompt.size(), 150));
    std::vector<TokenId> answer;
    const std::vector<float> reference = llama.greedy(prompt, kPositions, answer);
    ASSERT_EQ(reference.size(), static_cast<std::size_t>(kPositions) * n_vocab);
    CacheConfig config;
    config.policy = "full";
    auto session = (*engine)->create_session(config);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    GenerateOptions generate;
    generate.forced = answer;
    generate.n_predict = kPositions;
    std::vector<float> ours;
    generate.on_logits = [&](int, std::span<const float> logits) {
      ours.insert(ours.end(), logits.begin(), logits.end());
    };
    ASSERT_TRUE((*session)->generate(prompt, generate).has_value());
    agreement.add(reference, ours, n_vocab);
    if (quantised) {
      std::vector<TokenId> same;
      own.add(reference, llama.greedy(prompt, kPositions, same, GGML_TYPE_F32, false, &answer),
              n_vocab);
    }
    kept.add(reference, ours, n_vocab, gap);
  }
  std::printf(
      "  %s: mean KL %.1e (libllama's fp32 cache %.1e), largest logit difference %.1e (%.1e), "
      "greedy "
      "tokens kept %d of %d\n",
      std::filesystem::path(path).filename().c_str(), agreement.mean_kl, own.mean_kl,
      agreement.max_difference, own.max_difference, kept.clear - kept.wrong, kept.clear);
  EXPECT_LT(agreement.mean_kl, quantised ? std::max(3e-4, 1.5 * own.mean_kl) : 2e-5) << path;
  EXPECT_EQ(kept.wrong, 0) << path;
  EXPECT_GT(kept.clear, kPositions / 2) << path;
}

TEST(FullPolicy, AgreesWithLibllamaOnSmallModels) {
  for (const char* arch : {"llama", "qwen2", "qwen3"}) {
    TinyModel model;
    model.arch = arch;
    model.seed = 7;
    const std::string path = temp_model_path(std::string("full_policy_") + arch);
    ASSERT_EQ(write_tiny_model(path, model), "");
    compare_along_greedy_answer(path, false);
    std::filesystem::remove(path);
  }
}

// QEVICT_TEST_MODELS: folders of GGUF files, separated by colons.
TEST(FullPolicyRealModel, AgreesWithLibllama) {
  const char* folders = std::getenv("QEVICT_TEST_MODELS");
  if (folders == nullptr) GTEST_SKIP() << "QEVICT_TEST_MODELS names no folder of models";
  std::string rest = folders;
  int n = 0;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string folder = rest.substr(0, colon);
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename();
      if (entry.path().extension() != ".gguf") continue;
      const bool f32 = name.find("f32") != std::string::npos;
      const bool qwen = name.find("qwen") != std::string::npos;
      if (!f32 && !qwen) continue;
      ++n;
      compare_along_greedy_answer(entry.path().string(), !f32);
    }
  }
  if (n == 0) GTEST_SKIP() << "no model in " << folders;
}

}  // namespace
}  // namespace qevict
