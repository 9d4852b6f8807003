// Starts the real program in a folder of its own, with a tiny model, and returns what it did.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "eval/recall_model.h"
#include "gguf_writer.h"

namespace qevict {

struct CliResult {
  int exit_code = -1;  // 128 + n: ended by signal n
  std::string out, err;

  // The lines of stdout as JSON; a line that is none fails the test.
  std::vector<nlohmann::json> json_lines() const {
    std::vector<nlohmann::json> lines;
    std::istringstream stream(out);
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(nlohmann::json::parse(line, nullptr, false));
      EXPECT_FALSE(lines.back().is_discarded()) << line;
    }
    return lines;
  }
  nlohmann::json json() const {
    const auto lines = json_lines();
    EXPECT_EQ(lines.size(), 1U) << out << err;
    return lines.empty() ? nlohmann::json() : lines.front();
  }
};

struct CliSetup {
  std::string input = {};                     // stdin
  std::vector<std::string> environment = {};  // "NAME=value"
  bool interrupt_after_output = false;        // SIGINT as soon as something is on stdout
  std::string watched_file = {};              // ... or in this file
  int signal = SIGINT;                        // another one
  std::string stdout_path = {};               // instead of a file that is read back
  bool closed_stdout = false;                 // a pipe that nobody reads
};

class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "qevict-cli-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    if (!std::filesystem::exists(binary())) GTEST_SKIP() << "no program at " << binary();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string binary() { return std::string(QEVICT_BIN_DIR) + "/qevict"; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string read(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  // A model with random weights; made once a test.
  const std::string& model() {
    if (model_.empty()) {
      TinyModel tiny;
      tiny.head_dim = 32;
      model_ = make_model(tiny);
    }
    return model_;
  }
  std::string make_model(const TinyModel& tiny, const std::string& name = "tiny.gguf") const {
    EXPECT_EQ(write_tiny_model(path(name), tiny), "");
    return path(name);
  }

  // The model that answers questions about facts in its prompt (tools/recall_model).
  std::string recall_model() const {
    const auto bytes = recall_model_bytes();
    return write("recall.gguf", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  CliResult cli(const std::vector<std::string>& arguments, const CliSetup& setup = {}) const {
    const std::string in = write("stdin", setup.input);
    const std::string out = setup.stdout_path.empty() ? path("stdout") : setup.stdout_path;
    const std::string err = path("stderr");
    if (setup.stdout_path.empty()) write("stdout", "");
    write("stderr", "");
    const pid_t child = fork();
    if (child == 0) exec_program(arguments, setup, in, out, err);
    int status = 0;
    bool ended = false;
    if (setup.interrupt_after_output) {
      while (!ended && !started(setup, out)) {
        ended = waitpid(child, &status, WNOHANG) == child;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      if (!ended) kill(child, setup.signal);
    }
    if (!ended) waitpid(child, &status, 0);
    CliResult result;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (setup.stdout_path.empty()) result.out = read(out);
    result.err = read(err);
    return result;
  }

 private:
  static bool started(const CliSetup& setup, const std::string& out) {
    std::error_code missing;
    const auto size =
        std::filesystem::file_size(setup.watched_file.empty() ? out : setup.watched_file, missing);
    return !missing && size > 0;
  }
  static void exec_program(const std::vector<std::string>& arguments, const CliSetup& setup,
                           const std::string& in, const std::string& out, const std::string& err) {
    dup2(open(in.c_str(), O_RDONLY), STDIN_FILENO);
    if (setup.closed_stdout) {
      int ends[2];
      if (pipe(ends) != 0) _exit(126);
      close(ends[0]);
      dup2(ends[1], STDOUT_FILENO);
    } else {
      dup2(open(out.c_str(), O_WRONLY | O_TRUNC), STDOUT_FILENO);
    }
    dup2(open(err.c_str(), O_WRONLY | O_TRUNC), STDERR_FILENO);
    // One thread: two of them wait for each other for long where tests run in parallel.
    setenv("QEVICT_THREADS", "1", 1);
    for (const std::string& variable : setup.environment)
      putenv(const_cast<char*>(variable.c_str()));
    std::vector<char*> argv = {const_cast<char*>("qevict")};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(binary().c_str(), argv.data());
    _exit(127);
  }

  std::string folder_;
  std::string model_;
};

// A text that the tiny model's tokenizer turns into some hundred tokens.
inline std::string long_text(int words) {
  std::string text;
  for (int i = 0; i < words; ++i) {
    text += (i % 3 == 0 ? "the " : i % 3 == 1 ? "cat and " : "a dog was in ");
    text += static_cast<char>('a' + i * 7 % 26);
    text += ' ';
  }
  return text;
}

}  // namespace qevict
