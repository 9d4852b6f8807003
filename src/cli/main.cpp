// qevict: the program. Parses the command line and maps every failure to one line and an exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "cli/commands.h"
#include "cli/signals.h"

namespace qevict::cli {
namespace {

// The command that was meant, for "see `qevict run --help`".
std::string chosen_command(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    std::string name = "qevict " + command->get_name();
    for (const CLI::App* nested : command->get_subcommands()) name += " " + nested->get_name();
    return name;
  }
  return "qevict";
}

std::string command_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

int report_usage(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const bool no_command = app.get_subcommands().empty();
  if (no_command && argc > 1 && argv[1][0] != '-') {
    return report_error(
        {ErrorCode::BadInput, fmt::format("unknown command '{}' (command line): use one of {}",
                                          argv[1], command_names(app))});
  }
  if (no_command && argc <= 1) {
    return report_error(
        {ErrorCode::BadInput,
         fmt::format("no command (command line): use one of {}; see `qevict --help`",
                     command_names(app))});
  }
  return report_error({ErrorCode::BadInput, fmt::format("{} (command line): see `{} --help`",
                                                        error.what(), chosen_command(app))});
}

// A closed stdin, stdout or stderr leaves its number free, and the next file opened would get it
// and be written into. Each is taken by a file that refuses the use it would be put to.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      static_cast<void>(open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
    }
  }
}

int run_program(int argc, char** argv) {
  occupy_standard_descriptors();
  install_signal_handlers();
  CLI::App app("Language models on a CPU with a compressed KV cache.", "qevict");
  set_help_style(app);
  app.set_version_flag("--version", version_text, "version, commit, CPU features");
  app.require_subcommand(1);
  app.footer(
      "Options that take a value can also come from the environment: QEVICT_CTX_SIZE is "
      "--ctx-size.\n"
      "Example:\n"
      "  qevict pull && qevict run -p \"Once upon a time\" -n 64");
  int exit_code = kOk;
  add_run_command(app, exit_code);
  add_chat_command(app, exit_code);
  add_info_command(app, exit_code);
  add_pull_command(app, exit_code);
  add_policies_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_perplexity_command(app, exit_code);
  add_eval_command(app, exit_code);
  add_demo_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version are "errors" of this library, too.
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      std::ostringstream text;
      app.exit(error, text, text);
      Output output;
      output.write(text.str());
      if (const Status s = output.status(); !s) return report_error(s.error());
      return kOk;
    }
    return report_usage(app, error, argc, argv);
  }
  return exit_code;
}

// glibc raises its thresholds whenever a large block is freed (up to 32 MiB) and then keeps blocks
// of that size for itself: a prompt's buffers would count as resident for as long as the program
// lives. Fixed thresholds give every block of 1 MiB or more back to the system at once.
void return_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

}  // namespace
}  // namespace qevict::cli

int main(int argc, char** argv) {
  using namespace qevict;
  cli::return_freed_memory();
  try {
    return cli::run_program(argc, argv);
  } catch (const std::bad_alloc&) {
    return cli::report_error(
        {ErrorCode::Runtime, "out of memory (qevict): use a smaller model, context or budget"});
  } catch (const std::exception& error) {
    return cli::report_error({ErrorCode::Runtime, std::string("unexpected failure (") +
                                                      error.what() + "): please report it"});
  }
}
