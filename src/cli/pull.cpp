// qevict pull: fetches a known model.
#include "engine/pull.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/json_report.h"
#include "cli/signals.h"

namespace qevict::cli {
namespace {

struct PullArgs {
  std::string name;
  std::string folder;
  bool list = false;
  bool quiet = false;
};

void list_models(Output& output) {
  std::size_t width = 4;
  for (const KnownModel& m : known_models()) width = std::max(width, m.name.size());
  output.write(
      fmt::format("{:<{}}  {:>10}  {:<12}  {}\n", "name", width, "size", "license", "file"));
  for (const KnownModel& m : known_models()) {
    output.write(fmt::format("{:<{}}  {:>10}  {:<12}  {}\n", m.name, width,
                             format_bytes(static_cast<std::int64_t>(m.size_bytes)), m.license,
                             resolve_model(std::string(m.name))));
  }
}

Result<int> pull(const PullArgs& args) {
  Output output;
  if (args.list) {
    list_models(output);
    if (Status s = output.status(); !s) return std::unexpected(s.error());
    return kOk;
  }
  const Console console(args.quiet);
  ProgressBar bar(console, "fetching");
  PullOptions options;
  options.folder = args.folder;
  options.cancel = &interrupt_flag();
  options.progress = [&](const PullProgress& p) {
    if (p.total_bytes > 0) {
      bar.update(static_cast<double>(p.done_bytes) / static_cast<double>(p.total_bytes));
    }
  };
  const std::string name = args.name.empty() ? std::string(kDefaultModel) : args.name;
  const Result<std::string> path = pull_model(name, options);
  bar.clear();
  if (!path) return std::unexpected(path.error());
  output.write(*path + "\n");
  if (Status s = output.status(); !s) return std::unexpected(s.error());
  return kOk;
}

}  // namespace

void add_pull_command(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<PullArgs>();
  CLI::App* command = app.add_subcommand("pull", "fetch a known model; prints its file");
  command->add_option("name", args->name, fmt::format("which model [{}]", kDefaultModel))
      ->type_name("NAME");
  command->add_option("--folder", args->folder, "where to put it [the model folder]")
      ->type_name("DIR");
  command->add_flag("--list", args->list, "list the known models");
  command->add_flag("-q,--quiet", args->quiet, "errors only on stderr");
  command->footer(
      fmt::format("The SHA-256 is checked; an interrupted fetch goes on where it stopped.\n"
                  "Example:\n  qevict pull {}",
                  kDefaultModel));
  command->callback([args, &exit_code] {
    const Result<int> code = pull(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace qevict::cli
