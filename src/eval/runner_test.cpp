#include "eval/runner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "eval/recall_model.h"
#include "eval/recall_task.h"
#include "eval/run_folder.h"

namespace qevict {
namespace {

// Facts of the recall task as text: "the code of KEY VALUE VALUE ." and a question.
class FactsTask final : public Task {
 public:
  int twice = -1;  // this sample gets the id of the one before

  Result<std::vector<Sample>> samples(const Tokenizer& tokenizer,
                                      const TaskOptions& options) const override {
    std::vector<Sample> list;
    for (int i = 0; i < options.samples; ++i) {
      RecallShape shape;
      shape.n_tokens = options.context_tokens;
      shape.seed = static_cast<std::uint32_t>(options.seed) + static_cast<std::uint32_t>(i);
      const RecallPrompt prompt = make_recall_prompt(shape);
      const RecallFact& fact = prompt.facts.front();
      Sample s;
      s.id = std::to_string(i == twice ? i - 1 : i);
      s.context = tokenizer.decode(std::span(prompt.tokens).subspan(1), false);
      s.question = tokenizer.piece(RecallVocabulary::kAsk) + tokenizer.piece(fact.key);
      for (const TokenId value : fact.values) s.answers.push_back(tokenizer.piece(value));
      s.max_new_tokens = 6;
      list.push_back(std::move(s));
    }
    return list;
  }
};

Contender make_contender(const std::string& policy, double budget) {
  Contender c{policy, std::nullopt, {}};
  c.config.policy = policy;
  if (policy != "full") c.budget = KvBudget{KvBudget::Unit::Ratio, budget};
  if (c.budget) c.config.budget = *c.budget;
  return c;
}

class EvalRunner : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto file = RecallModelFile::create();
    ASSERT_TRUE(file.has_value()) << file.error().message;
    EngineOptions options;
    options.model_path = file->path();
    options.n_threads = 1;
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    engine_ = engine->release();
  }
  static void TearDownTestSuite() {
    delete engine_;
    engine_ = nullptr;
  }
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "qevict-run-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    options_.task.context_tokens = 256;
    options_.task.samples = 3;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<LoadedTask> load(const FactsTask& task = {}) const {
    return load_task("facts", task, engine_->tokenizer(), options_.task, options_.protocol,
                     engine_->ctx_size());
  }
  // Runs what is missing in `file`; the cells that are there afterwards.
  std::vector<CellResult> run(const std::string& file, const RunOptions& options) {
    const auto task = load();
    EXPECT_TRUE(task.has_value()) << task.error().message;
    std::vector<std::string> lines;
    auto out = LineFile::open(folder_ + "/" + file, lines);
    EXPECT_TRUE(out.has_value()) << out.error().message;
    RunFiles files{std::move(*out), *parse_cells(lines, file)};
    const Status s = run_evaluation(*engine_, std::span(&*task, 1), contenders_, options, files);
    EXPECT_TRUE(s.has_value()) << s.error().message;
    return files.cells;
  }
  // Everything but the times.
  static std::set<std::string> lines(std::vector<CellResult> cells) {
    std::set<std::string> set;
    for (CellResult& c : cells) {
      c.seconds = 0.0;
      set.insert(to_line(c));
    }
    EXPECT_EQ(set.size(), cells.size());
    return set;
  }

  static Engine* engine_;
  std::string folder_;
  RunOptions options_;
  std::vector<Contender> contenders_ = {make_contender("full", 1.0), make_contender("qevict", 0.3),
                                        make_contender("qevict", 0.5)};
};

Engine* EvalRunner::engine_ = nullptr;

TEST_F(EvalRunner, AnswersAreThoseOfSessionsOfTheirOwn) {
  const auto task = load();
  ASSERT_TRUE(task.has_value()) << task.error().message;
  SampleRunner runner(*engine_);
  const auto answers = runner.run(task->samples[0], task->prompts[0], contenders_, {});
  ASSERT_TRUE(answers.has_value()) << answers.error().message;
  for (std::size_t i = 0; i < contenders_.size(); ++i) {
    auto session = engine_->create_session(contenders_[i].config);
    ASSERT_TRUE(session.has_value());
    GenerateOptions generate;
    generate.n_predict = task->samples[0].max_new_tokens;
    const auto alone = (*session)->generate(task->prompts[0].context, generate);
    ASSERT_TRUE(alone.has_value());
    EXPECT_EQ((*answers)[i].text, alone->text);
    EXPECT_EQ((*answers)[i].n_tokens, static_cast<int>(alone->tokens.size()));
    EXPECT_EQ((*answers)[i].stop_reason, alone->stop_reason);
    EXPECT_EQ((*answers)[i].kv.resident_bytes, alone->kv.resident_bytes);
  }
}

TEST_F(EvalRunner, TheFullCacheAnswersAndEveryCellIsThere) {
  const std::vector<CellResult> cells = run("r", options_);
  ASSERT_EQ(cells.size(), 9U);
  for (const CellResult& c : cells) {
    EXPECT_GT(c.kv_resident_bytes, 0);
    EXPECT_GT(c.prompt_tokens, 200);
    EXPECT_GE(c.generated_tokens, 1);
    if (c.policy == "full") {
      EXPECT_EQ(c.score, 1.0) << c.prediction;
      EXPECT_EQ(c.kv_resident_bytes, c.full_cache_bytes);
    } else {
      EXPECT_LT(c.kv_resident_bytes, c.full_cache_bytes);
      EXPECT_GT(c.kv_budget_bytes, 0);
    }
  }
}

TEST_F(EvalRunner, FinishedCellsAreNotComputedAgain) {
  const auto whole = lines(run("whole", options_));
  // Only one contender of one sample is there, with a mark that a second computation would lose.
  {
    std::vector<std::string> lines = *read_lines(folder_ + "/whole");
    CellResult cell = *parse_cell(lines.front(), "");
    cell.seconds = 12345.0;
    auto out = LineFile::open(folder_ + "/part", lines);
    ASSERT_TRUE(out->append(std::vector{to_line(cell)}).has_value());
  }
  const std::vector<CellResult> cells = run("part", options_);
  EXPECT_EQ(cells.front().seconds, 12345.0);
  EXPECT_EQ(lines(cells), whole);
}

TEST_F(EvalRunner, ShardsAreTheWholeOnce) {
  const auto whole = lines(run("whole", options_));
  std::vector<CellResult> parts;
  for (int i = 0; i < 2; ++i) {
    RunOptions options = options_;
    options.shard = {i, 2};
    const auto part = run("part" + std::to_string(i), options);
    EXPECT_EQ(part.size(), i == 0 ? 6U : 3U);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(lines(parts), whole);
}

TEST_F(EvalRunner, ContextOnlyAppendsTheQuestionToTheCompressedCache) {
  const auto whole = lines(run("whole", options_));
  options_.protocol = Protocol::ContextOnly;
  const std::vector<CellResult> cells = run("context", options_);
  ASSERT_EQ(cells.size(), 9U);
  for (const CellResult& c : cells) {
    EXPECT_EQ(c.protocol, Protocol::ContextOnly);
    EXPECT_FALSE(c.over_budget);
    if (c.policy == "full") EXPECT_EQ(c.score, 1.0) << c.prediction;
  }
}

TEST_F(EvalRunner, AnInterruptionKeepsWhatIsFinished) {
  const auto task = load();
  std::vector<std::string> lines;
  auto out = LineFile::open(folder_ + "/r", lines);
  RunFiles files{std::move(*out), {}};
  std::atomic<bool> cancel{false};
  RunOptions options = options_;
  options.cancel = &cancel;
  options.progress = [&](double done, double) { cancel = done >= 3.0; };
  const Status s = run_evaluation(*engine_, std::span(&*task, 1), contenders_, options, files);
  ASSERT_FALSE(s.has_value());
  EXPECT_EQ(s.error().code, ErrorCode::Interrupted);
  EXPECT_EQ(files.cells.size(), 3U);
  EXPECT_EQ(read_lines(folder_ + "/r")->size(), 3U);
}

TEST_F(EvalRunner, RefusesAnIdTwiceAndPromptsThatDoNotFit) {
  FactsTask task;
  task.twice = 2;
  const auto twice = load(task);
  ASSERT_FALSE(twice.has_value());
  EXPECT_NE(twice.error().message.find("'1' twice"), std::string::npos) << twice.error().message;
  const auto longer = load_task("facts", FactsTask(), engine_->tokenizer(), options_.task,
                                Protocol::WholePrompt, 250);
  ASSERT_FALSE(longer.has_value());
  EXPECT_NE(longer.error().message.find("context of 250"), std::string::npos);
}

TEST_F(EvalRunner, TheDigestFollowsTheSamples) {
  const auto a = load();
  const auto b = load();
  EXPECT_EQ(a->digest, b->digest);
  options_.task.seed = 43;
  EXPECT_NE(load()->digest, a->digest);
}

TEST(EvalShard, CountsFromZeroOrOne) {
  EXPECT_EQ(parse_shard("0/2")->index, 0);
  EXPECT_EQ(parse_shard("1/2")->index, 1);
  EXPECT_EQ(parse_shard("2/2")->index, 0);
  EXPECT_EQ(parse_shard("3/8")->count, 8);
  for (const char* bad : {"", "1", "/", "1/", "/2", "3/2", "-1/2", "1/0", "1/2x", "a/b", "1 /2"}) {
    EXPECT_FALSE(parse_shard(bad).has_value()) << bad;
  }
}

TEST_F(EvalRunner, AFolderRemembersItsSettings) {
  RunSettings settings;
  settings.model = "m.gguf";
  settings.tasks = {{"facts", 3, "d"}};
  for (const Contender& c : contenders_) settings.policies.push_back({c.policy, c.budget});
  settings.samples = 3;
  settings.seed = 42;
  {
    auto first = open_run(folder_, {}, false, settings);
    ASSERT_TRUE(first.has_value()) << first.error().message;
    ASSERT_TRUE(first->results.append(std::vector{to_line(CellResult())}).has_value());
  }
  EXPECT_FALSE(open_run(folder_, {}, false, settings).has_value()) << "without --resume";
  EXPECT_EQ(open_run(folder_, {}, true, settings)->cells.size(), 1U);
  EXPECT_FALSE(open_run(folder_, {0, 2}, false, settings).has_value()) << "shard, no --resume";
  EXPECT_EQ(open_run(folder_, {0, 2}, true, settings)->cells.size(), 1U) << "of results.jsonl";
  settings.samples = 20;
  settings.policies.pop_back();
  const auto other = open_run(folder_, {}, true, settings);
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, ErrorCode::BadInput);
  EXPECT_NE(other.error().message.find("samples: 20, was 3"), std::string::npos)
      << other.error().message;
  EXPECT_NE(other.error().message.find(R"(policies: without [{"policy":"qevict","budget":0.5}])"),
            std::string::npos);
  EXPECT_EQ(other.error().message.find("seed"), std::string::npos);
}

}  // namespace
}  // namespace qevict
