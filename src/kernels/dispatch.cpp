#include <hwy/targets.h>

#include <array>
#include <cstdlib>

#include "kernels/attend_vnni.h"
#include "kernels/panel_products.h"
#include "kernels/tables.h"

namespace qevict {
namespace {

struct Isa {
  const char* name;
  std::int64_t target;
};
constexpr std::array<Isa, 4> kIsas = {
    {{"sse4", HWY_SSE4}, {"avx2", HWY_AVX2}, {"avx512", HWY_AVX3}, {"neon", HWY_NEON}}};

constexpr KernelTable kReference = {"reference",
                                    reference_attend_full,
                                    reference_attend_quantized,
                                    reference_attend_recent,
                                    reference_rotate_queries_back,
                                    reference_window_phases,
                                    reference_prefill_tile,
                                    &kReferenceDenseOps};

// The tables that this CPU and build have, slowest first.
struct Tables {
  std::array<KernelTable, kIsas.size() + 4> table;
  std::size_t n = 0;
  // The last of them, when there is one, is never chosen by itself: a test double of "amx".
  std::size_t n_hidden = 0;
  std::size_t active = 0;
  std::string error;

  // n + n_hidden when unknown.
  std::size_t find(std::string_view name) const {
    std::size_t i = 0;
    while (i < n + n_hidden && name != table[i].name) ++i;
    return i;
  }
  bool known(std::size_t i) const { return i < n + n_hidden; }
};

void add_simd_tables(Tables& tables) {
  const std::int64_t supported = hwy::SupportedTargets();
  KernelTable emulated{};
  for (const Isa& isa : kIsas) {
    if ((supported & isa.target) == 0) continue;
    const AttendOps* attend = attend_ops_for_target(isa.target);
    const PrefillOps* prefill = prefill_ops_for_target(isa.target);
    const DenseOps* dense = dense_ops_for_target(isa.target);
    if (attend == nullptr || prefill == nullptr || dense == nullptr) continue;
    tables.table[tables.n++] = {isa.name,
                                attend->attend_full,
                                attend->attend_quantized,
                                attend->attend_recent,
                                attend->rotate_queries_back,
                                attend->window_phases,
                                prefill->prefill_tile,
                                dense};
    emulated = tables.table[tables.n - 1];
    emulated.name = "emulated_tiles";
    emulated.prefill_tile = prefill->prefill_tile_emulated;
    if (isa.target == HWY_AVX3 && vnni_add_values() != nullptr && cpu_has_vnni()) {
      tables.table[tables.n] = tables.table[tables.n - 1];
      tables.table[tables.n].name = "avx512_vnni";
      tables.table[tables.n++].attend_quantized = attend->attend_quantized_integer;
    }
    if (isa.target == HWY_AVX3 && amx_products() != nullptr) {
      tables.table[tables.n] = tables.table[tables.n - 1];
      tables.table[tables.n].name = "amx";
      tables.table[tables.n++].prefill_tile = prefill->prefill_tile_amx;
    }
  }
  if (emulated.name != nullptr) tables.table[tables.n + tables.n_hidden++] = emulated;
}

void choose_active(Tables& tables) {
  tables.active = tables.n - 1;
  const char* wanted = std::getenv("QEVICT_ISA");
  if (wanted == nullptr || *wanted == '\0') return;
  if (const std::size_t i = tables.find(wanted); tables.known(i)) {
    tables.active = i;
    return;
  }
  tables.error = std::string("no such kernels on this machine (QEVICT_ISA=") + wanted + "): use ";
  for (std::size_t i = 0; i < tables.n; ++i) {
    tables.error += (i == 0 ? "" : i + 1 == tables.n ? " or " : ", ");
    tables.error += tables.table[i].name;
  }
}

const Tables& tables() {
  static const Tables instance = [] {
    Tables t;
    t.table[t.n++] = kReference;
    add_simd_tables(t);
    choose_active(t);
    return t;
  }();
  return instance;
}

}  // namespace

const KernelTable& reference_kernels() noexcept { return kReference; }

const KernelTable& active_kernels() noexcept { return tables().table[tables().active]; }

const KernelTable* find_kernels(std::string_view isa) noexcept {
  const std::size_t i = tables().find(isa);
  return tables().known(i) ? &tables().table[i] : nullptr;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tables().n; ++i) names.emplace_back(tables().table[i].name);
  return names;
}

std::string isa_error() { return tables().error; }

}  // namespace qevict
