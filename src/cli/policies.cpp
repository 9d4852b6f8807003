// qevict policies: the table of what may decide about the cache.
#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/json_report.h"
#include "policies/registry.h"

namespace qevict::cli {
namespace {

std::string as_table() {
  std::size_t width = 4;
  for (const PolicySpec& p : policies()) width = std::max(width, p.name.size());
  std::string out;
  for (const PolicySpec& p : policies()) {
    out += fmt::format("{:<{}}  {}\n{:<{}}  {}\n", p.name, width, p.paper, "", width, p.parameters);
  }
  return out;
}

std::string as_json() {
  Json list = Json::array();
  for (const PolicySpec& p : policies()) {
    list.push_back({{"name", p.name}, {"paper", p.paper}, {"parameters", p.parameters}});
  }
  return dump_json(list) + "\n";
}

}  // namespace

void add_policies_command(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("policies", "list the policies, their papers and parameters");
  command->add_flag("--json", *json, "print a JSON array");
  command->footer(
      "Parameters are given with the name: --policy qevict:window=16,quant_bits=4\n"
      "Example:\n  qevict policies --json");
  command->callback([json, &exit_code] {
    Output output;
    output.write(*json ? as_json() : as_table());
    const Status status = output.status();
    exit_code = status ? kOk : report_error(status.error());
  });
}

}  // namespace qevict::cli
