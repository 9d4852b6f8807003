// Many sessions decoded together, through the engine, on small models with random weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "engine/engine.h"
#include "gguf_writer.h"
#include "model/gguf_file.h"

namespace qevict {
namespace {

using Logits = std::vector<float>;

std::unique_ptr<Engine> load(const std::string& path, int threads) {
  EngineOptions options;
  options.model_path = path;
  options.n_threads = threads;
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine.has_value()) << (engine ? "" : engine.error().message);
  return engine ? std::move(*engine) : nullptr;
}

std::unique_ptr<Engine> load(const TinyModel& model, int threads) {
  const std::string path = temp_model_path("batch_" + model.arch);
  EXPECT_EQ(write_tiny_model(path, model), "");
  auto engine = load(path, threads);
  std::filesystem::remove(path);  // stays mapped
  return engine;
}

TokenId token_at(std::size_t sequence, int i) {
  const auto mixed = static_cast<std::uint32_t>(sequence * 7919 + i * 104729 + 12345) * 2654435761U;
  return 5 + static_cast<TokenId>((mixed >> 8) % static_cast<unsigned>(tiny_vocab_size() - 5));
}

struct Ragged {
  int n_prompt;
  double budget;
  const char* policy;
};
constexpr Ragged kRagged[] = {
    {3, 0.2, "qevict"},   {601, 0.1, "qevict"}, {150, 0.2, "full"},
    {300, 0.4, "qevict"}, {77, 1.0, "qevict"},
};
constexpr std::size_t kSequences = std::size(kRagged);
constexpr int kSteps = 40;

std::unique_ptr<Session> start(Engine& engine, std::size_t i, int max_new = kSteps) {
  CacheConfig config;
  config.policy = kRagged[i].policy;
  config.budget = {KvBudget::Unit::Ratio, kRagged[i].budget};
  auto session = engine.create_session(config);
  EXPECT_TRUE(session.has_value()) << (session ? "" : session.error().message);
  std::vector<TokenId> prompt;
  for (int t = 0; t < kRagged[i].n_prompt; ++t) prompt.push_back(token_at(i, t));
  EXPECT_TRUE((*session)->prefill(prompt, max_new, {}).has_value());
  return std::move(*session);
}

// The token that sequence i is made to decode at this step.
TokenId forced(std::size_t i, int step) { return token_at(i, 5000 + step); }

// Logits of every step, one sequence at a time.
std::vector<std::vector<Logits>> alone(Engine& engine) {
  std::vector<std::vector<Logits>> all(kSequences);
  for (std::size_t i = 0; i < kSequences; ++i) {
    const auto session = start(engine, i);
    for (int step = 0; step < kSteps; ++step) {
      const auto logits = session->decode(forced(i, step));
      EXPECT_TRUE(logits.has_value());
      all[i].emplace_back(logits->begin(), logits->end());
    }
  }
  return all;
}

struct Difference {
  double largest = 0.0;
  int clear = 0, wrong = 0;  // tokens that lead by more than 0.5, and those that lost the lead
  void add(std::span<const float> a, std::span<const float> b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
    }
    Logits sorted(a.begin(), a.end());
    std::ranges::partial_sort(sorted, sorted.begin() + 2, std::greater<>());
    if (sorted[0] - sorted[1] <= 0.5F) return;
    ++clear;
    wrong += std::ranges::max_element(a) - a.begin() != std::ranges::max_element(b) - b.begin();
  }
};

TEST(Batch, AgreesWithEachSequenceAlone) {
  for (const bool quantised : {false, true}) {
    TinyModel model;
    if (quantised) model.arch = "qwen2", model.type = "q8_0", model.key_bias = 40.0F;
    const auto engine = load(model, 1);
    ASSERT_NE(engine, nullptr);
    const auto expected = alone(*engine);
    std::vector<std::unique_ptr<Session>> sessions;
    for (std::size_t i = 0; i < kSequences; ++i) sessions.push_back(start(*engine, i));
    const auto batch = engine->create_batch();
    Difference difference;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<BatchInput> inputs;
      for (std::size_t i = 0; i < kSequences; ++i) {
        inputs.push_back({sessions[i].get(), forced(i, step)});
      }
      const auto rows = batch->decode(inputs);
      ASSERT_EQ(rows.size(), kSequences);
      for (std::size_t i = 0; i < kSequences; ++i) {
        ASSERT_TRUE(rows[i].has_value()) << rows[i].error().message;
        difference.add(expected[i][step], *rows[i]);
      }
    }
    // ggml sums in another order for several rows; behind quantised weights activations are rounded
    // to int8, where a last bit can move a whole step. Logits are of size 10.
    EXPECT_LT(difference.largest, quantised ? 0.3 : 2e-3);
    EXPECT_GT(difference.clear, static_cast<int>(kSequences) * kSteps / 4);
    EXPECT_EQ(difference.wrong, 0);
    RecordProperty(quantised ? "largest_q8_0" : "largest_f32", std::to_string(difference.largest));
    for (std::size_t i = 0; i < kSequences; ++i) {
      EXPECT_EQ(sessions[i]->n_tokens(), kRagged[i].n_prompt + kSteps);
    }
    EXPECT_GT(batch->attention_seconds(), 0.0);
  }
}

TEST(Batch, OfOneSequenceHasTheBitsOfASession) {
  const auto engine = load(TinyModel{}, 1);
  ASSERT_NE(engine, nullptr);
  const auto one = start(*engine, 1), other = start(*engine, 1);
  const auto batch = engine->create_batch();
  for (int step = 0; step < kSteps; ++step) {
    const BatchInput input{one.get(), forced(1, step)};
    const auto row = batch->decode({&input, 1});
    const auto logits = other->decode(forced(1, step));
    ASSERT_TRUE(row[0].has_value() && logits.has_value());
    ASSERT_TRUE(std::ranges::equal(*row[0], *logits)) << step;
  }
  EXPECT_EQ(one->kv_stats().resident_bytes, other->kv_stats().resident_bytes);
}

// Few steps: threads that other programs interrupt wait for each other for long.
TEST(Batch, SameBitsOnOneAndTwoThreads) {
  std::vector<std::vector<Logits>> runs;
  for (const int threads : {1, 2}) {
    const auto engine = load(TinyModel{}, threads);
    ASSERT_NE(engine, nullptr);
    std::vector<std::unique_ptr<Session>> sessions;
    for (std::size_t i = 0; i < kSequences; ++i) sessions.push_back(start(*engine, i));
    int events = 0;
    sessions[1]->set_trace([&](const LayerEvent&) { ++events; });
    const auto batch = engine->create_batch();
    std::vector<Logits> logits;
    for (int step = 0; step < 18; ++step) {
      std::vector<BatchInput> inputs;
      for (std::size_t i = 0; i < kSequences; ++i) {
        inputs.push_back({sessions[i].get(), forced(i, step)});
      }
      for (const auto& row : batch->decode(inputs)) {
        ASSERT_TRUE(row.has_value()) << row.error().message;
        logits.emplace_back(row->begin(), row->end());
      }
    }
    EXPECT_EQ(events, 2 * 2);  // two layers
    EXPECT_GT(batch->routing_seconds(), 0.0);
    runs.push_back(std::move(logits));
  }
  EXPECT_EQ(runs[0], runs[1]);
}

TEST(Batch, SequencesJoinAndLeave) {
  const auto engine = load(TinyModel{}, 1);
  ASSERT_NE(engine, nullptr);
  const auto expected = alone(*engine);
  // Sequence i takes part from step 5 i on; two of them leave early, one in favour of its own
  // steps.
  std::vector<std::unique_ptr<Session>> sessions(kSequences);
  std::vector<int> done(kSequences, 0);
  const auto batch = engine->create_batch();
  Difference difference;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<BatchInput> inputs;
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < kSequences; ++i) {
      if (step < static_cast<int>(5 * i)) continue;
      if (i == 2 && step >= 20) {
        sessions[i].reset();
        continue;
      }
      if (sessions[i] == nullptr) sessions[i] = start(*engine, i);
      if (i == 1 && step >= 30) {
        const auto logits = sessions[i]->decode(forced(i, done[i]));
        ASSERT_TRUE(logits.has_value());
        difference.add(expected[i][done[i]++], *logits);
        continue;
      }
      inputs.push_back({sessions[i].get(), forced(i, done[i])});
      members.push_back(i);
    }
    const auto rows = batch->decode(inputs);
    ASSERT_EQ(rows.size(), members.size());
    for (std::size_t row = 0; row < rows.size(); ++row) {
      ASSERT_TRUE(rows[row].has_value()) << rows[row].error().message;
      const std::size_t i = members[row];
      difference.add(expected[i][done[i]++], *rows[row]);
    }
  }
  EXPECT_LT(difference.largest, 2e-3);
  EXPECT_EQ(difference.wrong, 0);
  EXPECT_EQ(done, (std::vector<int>{40, 35, 10, 25, 20}));
}

TEST(Batch, ARefusedSequenceLeavesTheOthersAlone) {
  const auto engine = load(TinyModel{}, 1), stranger = load(TinyModel{}, 1);
  ASSERT_TRUE(engine && stranger);
  const auto expected = alone(*engine);
  const auto good = start(*engine, 1), full = start(*engine, 0, 1), foreign = start(*stranger, 0);
  auto empty = engine->create_session({});
  ASSERT_TRUE(empty.has_value());
  ASSERT_TRUE(full->decode(7).has_value());  // that was its room
  const auto batch = engine->create_batch();
  EXPECT_TRUE(batch->decode({}).empty());
  Difference difference;
  for (int step = 0; step < 12; ++step) {
    const BatchInput inputs[] = {{full.get(), 7},
                                 {nullptr, 7},
                                 {good.get(), forced(1, step)},
                                 {good.get(), forced(1, step)},
                                 {foreign.get(), 7},
                                 {empty->get(), 7}};
    const auto rows = batch->decode(inputs);
    ASSERT_EQ(rows.size(), std::size(inputs));
    const char* const why[] = {"no room", "no session",     nullptr,
                               "twice",   "another engine", "no room"};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(rows[i].has_value(), why[i] == nullptr) << i;
      if (why[i] == nullptr) continue;
      EXPECT_EQ(rows[i].error().code, ErrorCode::BadInput);
      EXPECT_NE(rows[i].error().message.find(why[i]), std::string::npos) << rows[i].error().message;
    }
    difference.add(expected[1][step], *rows[2]);
    const BatchInput outside{good.get(), tiny_vocab_size()};
    EXPECT_FALSE(batch->decode({&outside, 1})[0].has_value());
  }
  EXPECT_LT(difference.largest, 2e-3);
  EXPECT_EQ(good->n_tokens(), kRagged[1].n_prompt + 12);
  EXPECT_EQ(full->n_tokens(), kRagged[0].n_prompt + 1);
}

// Overwrites the embedding of `token` in an F32 file.
void spoil_embedding(const std::string& path, TokenId token, int n_embd) {
  std::uint64_t at = 0;
  {
    const auto file = GgufFile::open(path, false);
    ASSERT_TRUE(file.has_value());
    const GgufTensor* table = file->find_tensor("token_embd.weight");
    ASSERT_NE(table, nullptr);
    at = table->offset + static_cast<std::uint64_t>(token) * n_embd * sizeof(float);
  }
  const std::vector<float> row(static_cast<std::size_t>(n_embd),
                               std::numeric_limits<float>::quiet_NaN());
  std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.write(reinterpret_cast<const char*>(row.data()),
               static_cast<std::streamsize>(row.size() * sizeof(float)));
  ASSERT_TRUE(stream.good());
}

TEST(Batch, ASequenceThatBreaksLeavesTheOthersTheirBits) {
  constexpr TokenId kSpoilt = 4;  // token_at() never gives it
  TinyModel model;
  model.tied = false;
  const std::string path = temp_model_path("batch_spoilt");
  ASSERT_EQ(write_tiny_model(path, model), "");
  spoil_embedding(path, kSpoilt, model.n_heads * model.head_dim);
  const auto engine = load(path, 1);
  std::filesystem::remove(path);
  ASSERT_NE(engine, nullptr);
  std::vector<std::vector<Logits>> runs;
  for (const bool broken : {false, true}) {
    std::vector<std::unique_ptr<Session>> sessions;
    for (std::size_t i = 0; i < kSequences; ++i) sessions.push_back(start(*engine, i));
    const auto batch = engine->create_batch();
    std::vector<Logits> logits;
    for (int step = 0; step < 10; ++step) {
      std::vector<BatchInput> inputs;
      for (std::size_t i = 0; i < kSequences; ++i) {
        if (i == 3 && step > 4) continue;
        inputs.push_back({sessions[i].get(), forced(i, step)});
      }
      if (broken && step == 4) inputs[3].token = kSpoilt;
      const auto rows = batch->decode(inputs);
      for (std::size_t row = 0; row < rows.size(); ++row) {
        if (step == 4 && row == 3) {
          EXPECT_EQ(rows[row].has_value(), !broken);
          if (broken) EXPECT_EQ(rows[row].error().code, ErrorCode::Runtime);
          continue;
        }
        ASSERT_TRUE(rows[row].has_value()) << rows[row].error().message;
        logits.emplace_back(rows[row]->begin(), rows[row]->end());
      }
    }
    if (broken) {
      const BatchInput input{sessions[3].get(), 7};
      const auto row = batch->decode({&input, 1});
      ASSERT_FALSE(row[0].has_value());
      EXPECT_NE(row[0].error().message.find("half-way"), std::string::npos);
    }
    runs.push_back(std::move(logits));
  }
  EXPECT_EQ(runs[0], runs[1]);
}

// QEVICT_TEST_MODELS: folders of GGUF files, separated by colons; the first is looked at.
TEST(BatchRealModel, KeepsTheTokensThatEachSequenceGeneratesAlone) {
  const char* folders = std::getenv("QEVICT_TEST_MODELS");
  if (folders == nullptr) GTEST_SKIP() << "QEVICT_TEST_MODELS names no folder of models";
  const std::string folder = std::string(folders).substr(0, std::string(folders).find(':'));
  std::string path;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.find("qwen") != std::string::npos && name.ends_with(".gguf")) path = entry.path();
  }
  if (path.empty()) GTEST_SKIP() << "no model in " << folder;
  const auto engine = load(path, 1);
  ASSERT_NE(engine, nullptr);
  const std::string texts[] = {"Write a Python function that returns the n-th Fibonacci number.",
                               "The lighthouse keeper wrote in his log every evening: the wind, ",
                               "List the planets of the solar system. "};
  constexpr int kAnswer = 16;
  const auto begin = [&](std::size_t i) {
    std::string text;
    for (std::size_t repeat = 0; repeat <= 8 * i; ++repeat) text += texts[i];
    auto session = engine->create_session({});
    EXPECT_TRUE(session.has_value());
    const auto prompt = engine->tokenizer().encode(text, true, false);
    EXPECT_TRUE((*session)->prefill(*prompt, kAnswer, {}).has_value());
    return std::move(*session);
  };
  std::vector<std::vector<Logits>> expected(std::size(texts));
  std::vector<std::vector<TokenId>> answers(std::size(texts));
  std::vector<std::unique_ptr<Session>> sessions;
  for (std::size_t i = 0; i < std::size(texts); ++i) {
    const auto session = begin(i);
    TokenId token = 198;
    for (int step = 0; step < kAnswer; ++step) {
      answers[i].push_back(token);
      const auto logits = session->decode(token);
      ASSERT_TRUE(logits.has_value());
      expected[i].emplace_back(logits->begin(), logits->end());
      token = static_cast<TokenId>(std::ranges::max_element(*logits) - logits->begin());
    }
    sessions.push_back(begin(i));
  }
  const auto batch = engine->create_batch();
  Difference difference;
  for (int step = 0; step < kAnswer; ++step) {
    std::vector<BatchInput> inputs;
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      inputs.push_back({sessions[i].get(), answers[i][step]});
    }
    const auto rows = batch->decode(inputs);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(rows[i].has_value()) << rows[i].error().message;
      difference.add(expected[i][step], *rows[i]);
    }
  }
  std::printf("  largest logit difference %.2g, %d of %d clear tokens kept\n", difference.largest,
              difference.clear - difference.wrong, difference.clear);
  EXPECT_GT(difference.clear, kAnswer);
  EXPECT_EQ(difference.wrong, 0);
}

}  // namespace
}  // namespace qevict
