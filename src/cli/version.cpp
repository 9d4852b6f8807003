#include <fmt/format.h>

#include "cli/build_info.h"
#include "cli/commands.h"
#include "kernels/kernels.h"
#include "model/model.h"

namespace qevict::cli {

std::string version_name() { return QEVICT_VERSION " (" QEVICT_COMMIT ")"; }

std::string version_text() {
  std::string isas;
  for (const std::string& isa : available_isas()) isas += (isas.empty() ? "" : ", ") + isa;
  return fmt::format(
      "qevict {} ({})\n{}\nCPU features: {}\nkernels: {} (available: {})\ncompiler: {}, {}",
      QEVICT_VERSION, QEVICT_COMMIT, backend_version(), backend_cpu_features(),
      active_kernels().name, isas, QEVICT_COMPILER, QEVICT_BUILD_TYPE);
}

}  // namespace qevict::cli
