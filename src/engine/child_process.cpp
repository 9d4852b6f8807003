#include "engine/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

extern char** environ;

namespace qevict {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kFirstWait = std::chrono::milliseconds(2);  // short programs end sooner than a tick

std::vector<std::string> merged_environment(const ChildOptions& options) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = false;
    for (const auto& [key, value] : options.environment) {
      replaced = replaced || text.starts_with(key + "=");
    }
    if (!replaced) merged.push_back(text);
  }
  for (const auto& [key, value] : options.environment) merged.push_back(key + "=" + value);
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

int exit_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The child leads a process group of its own: what it started ends with it, and a terminal's Ctrl-C
// reaches only us, who then end it in order.
void end_group(pid_t pid) {
  kill(-pid, SIGTERM);
  int status = 0;
  for (int i = 0; i < 20; ++i) {
    if (waitpid(pid, &status, WNOHANG) == pid) return;
    std::this_thread::sleep_for(kTick);
  }
  kill(-pid, SIGKILL);
  waitpid(pid, &status, 0);
}

}  // namespace

Result<int> run_child(const std::vector<std::string>& command, const ChildOptions& options) {
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = merged_environment(options);
  std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  const std::string output = options.output_file.empty() ? "/dev/null" : options.output_file;
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);

  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == ENOENT || error == EACCES) return 127;
  if (error != 0) {
    return runtime_error("cannot start a program (" + command[0] + "): " + std::strerror(error));
  }

  auto wait = kFirstWait;
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return exit_status(status);
    if (ended < 0 && errno != EINTR) {
      return runtime_error("cannot wait for a program (" + command[0] +
                           "): " + std::strerror(errno));
    }
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
      end_group(pid);
      return interrupted("interrupted (" + command[0] + "): run it again");
    }
    if (options.on_tick) options.on_tick();
    std::this_thread::sleep_for(wait);
    wait = std::min<std::chrono::milliseconds>(wait * 2, kTick);
  }
}

}  // namespace qevict
