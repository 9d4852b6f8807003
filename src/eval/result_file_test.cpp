#include "eval/result_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace qevict {
namespace {

CellResult make_cell(const std::string& id) {
  CellResult c;
  c.task = "file:x.jsonl";
  c.id = id;
  c.policy = "snapkv:window=16,kernel=5";
  c.budget = KvBudget{KvBudget::Unit::Ratio, 0.1};
  c.protocol = Protocol::ContextOnly;
  c.score = 0.5;
  c.metric = "f1";
  c.prediction = "two\nlines \"quoted\" \xc3\xa9";
  c.stop_reason = "eos";
  c.kv_resident_bytes = 123456789012;
  c.over_budget = true;
  c.prompt_tokens = 17;
  c.seconds = 0.25;
  c.seed = 42;
  return c;
}

class ResultFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "qevict-eval-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void append_text(const std::string& file, const std::string& text) const {
    std::ofstream(file, std::ios::binary | std::ios::app) << text;
  }
  std::string folder_;
};

TEST(Cell, ComesBackFromItsLine) {
  CellResult cell = make_cell("a");
  const std::string line = to_line(cell);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Result<CellResult> back = parse_cell(line, "here");
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(to_line(*back), line);
  EXPECT_EQ(back->key(), cell.key());
  EXPECT_EQ(back->prediction, cell.prediction);
  cell.budget.reset();
  EXPECT_NE(to_line(cell).find("\"budget\":null"), std::string::npos);
  EXPECT_FALSE(parse_cell(to_line(cell), "here")->budget.has_value());
  cell.budget = KvBudget{KvBudget::Unit::Bytes, 1 << 26};
  EXPECT_EQ(parse_cell(to_line(cell), "here")->budget->to_string(), "64MiB");
}

TEST(Cell, NamesTheFieldThatIsMissingOrOfAnotherKind) {
  EvalJson json = EvalJson::parse(to_line(make_cell("a")));
  json["score"] = "high";
  const auto kind = parse_cell(json.dump(), "r.jsonl, line 7");
  ASSERT_FALSE(kind.has_value());
  EXPECT_EQ(kind.error().code, ErrorCode::BadInput);
  EXPECT_NE(kind.error().message.find("'score'"), std::string::npos);
  EXPECT_NE(kind.error().message.find("line 7"), std::string::npos);
  json.erase("score");
  EXPECT_FALSE(parse_cell(json.dump(), "x").has_value());
  EXPECT_FALSE(parse_cell("[1]", "x").has_value());
  EXPECT_FALSE(parse_cell("{", "x").has_value());
}

using Lines = std::vector<std::string>;

TEST_F(ResultFileTest, AppendedLinesAreReadBack) {
  const std::string file = path("results.jsonl");
  Lines stored = {"old"};
  {
    auto out = LineFile::open(file, stored);
    ASSERT_TRUE(out.has_value()) << out.error().message;
    EXPECT_TRUE(stored.empty());
    ASSERT_TRUE(out->append(Lines{"a", "b"}).has_value());
    ASSERT_TRUE(out->append(Lines{"c"}).has_value());
  }
  EXPECT_EQ(*read_lines(file), (Lines{"a", "b", "c"}));
  EXPECT_TRUE(read_lines(path("none.jsonl"))->empty());
}

TEST_F(ResultFileTest, AHalfLineAtTheEndIsDropped) {
  const std::string file = path("results.jsonl");
  append_text(file, "whole\nhal");
  EXPECT_EQ(*read_lines(file), Lines{"whole"});
  {
    Lines stored;
    auto out = LineFile::open(file, stored);
    ASSERT_TRUE(out.has_value()) << out.error().message;
    EXPECT_EQ(stored, Lines{"whole"});
    ASSERT_TRUE(out->append(Lines{"next"}).has_value());
  }
  EXPECT_EQ(*read_lines(file), (Lines{"whole", "next"}));
}

TEST_F(ResultFileTest, ASecondWriterIsRefused) {
  Lines stored;
  const auto first = LineFile::open(path("r"), stored);
  ASSERT_TRUE(first.has_value());
  const auto second = LineFile::open(path("r"), stored);
  ASSERT_FALSE(second.has_value());
  EXPECT_NE(second.error().message.find("another evaluation"), std::string::npos);
}

TEST_F(ResultFileTest, NothingIsLostWhereNothingMoreCanBeWritten) {
  const std::string file = path("results.jsonl");
  append_text(file, "whole\n");
  Lines stored;
  auto out = LineFile::open(file, stored);
  ASSERT_TRUE(out.has_value());
  // The disk is full from the tenth byte on.
  struct rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit small = {10, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const Status full = out->append(Lines{"does not fit"});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::Runtime);
  EXPECT_EQ(*read_file(file), "whole\n");
}

TEST(Cell, ALineThatIsNoneIsNamed) {
  const auto cells = parse_cells(Lines{to_line(make_cell("a")), "oops"}, "r.jsonl");
  ASSERT_FALSE(cells.has_value());
  EXPECT_NE(cells.error().message.find("r.jsonl, line 2"), std::string::npos);
}

TEST_F(ResultFileTest, WritesWholeFilesOrNone) {
  ASSERT_TRUE(write_file(path("a.json"), "one").has_value());
  ASSERT_TRUE(write_file(path("a.json"), "two").has_value());
  EXPECT_EQ(*read_file(path("a.json")), "two");
  EXPECT_FALSE(write_file(path("none/a.json"), "x").has_value());
  EXPECT_FALSE(write_file(folder_, "x").has_value());  // a folder has this name
  int left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) left += entry.exists();
  EXPECT_EQ(left, 1) << "a part was left behind";
}

TEST_F(ResultFileTest, SaysWhyAFolderCannotBeUsed) {
  append_text(path("file"), "x");
  const Status s = make_folder(path("file/out"));
  ASSERT_FALSE(s.has_value());
  EXPECT_EQ(s.error().code, ErrorCode::Runtime);
  EXPECT_NE(s.error().message.find("file/out"), std::string::npos);
  EXPECT_TRUE(make_folder(path("new/deep")).has_value());
}

}  // namespace
}  // namespace qevict
