#include "cli/tier_map.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace qevict::cli {
namespace {

std::string_view colour_of(char tier) {
  switch (tier) {
    case kMapFull:
      return "32;1";  // green
    case kMapQuantized:
    case '2':
    case '3':
    case '4':
    case '8':
      return "33";  // yellow
    case kMapLocal:
      return "36";  // cyan
    default:
      return "2";  // dim
  }
}

}  // namespace

std::string tier_map(const KvCache& cache, int layer) {
  const LayerCache& state = cache.unit(layer, 0);
  const int window = cache.geometry().window;
  const TokenPos local = cache.n_tokens() - state.local_begin();
  const auto ranked = static_cast<std::size_t>((state.local_begin() - cache.budget().n_sink)) /
                      static_cast<std::size_t>(window);
  std::string map(ranked, kMapEvicted);
  for (const WindowId id : state.full().ids()) map[static_cast<std::size_t>(id)] = kMapFull;
  for (int r = 0; r < state.n_rungs(); ++r) {
    for (const WindowId id : state.quantized(r).ids()) {
      map[static_cast<std::size_t>(id)] =
          state.ladder() ? static_cast<char>('0' + kRungs[r].bits) : kMapQuantized;
    }
  }
  map.append(static_cast<std::size_t>((local + window - 1) / window), kMapLocal);
  return map;
}

std::string coloured(const std::string& map) {
  std::string out;
  char last = 0;
  for (const char tier : map) {
    if (tier != last) out += fmt::format("\x1b[0;{}m", colour_of(tier));
    out += tier;
    last = tier;
  }
  return out + "\x1b[0m";
}

bool stdout_shows_colour() {
  const char* term = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) != 0 && term != nullptr && *term != '\0' &&
         std::string_view(term) != "dumb" && (no_colour == nullptr || *no_colour == '\0');
}

}  // namespace qevict::cli
