// Where each window of a layer is, as a line of characters.
#pragma once

#include <string>

#include "kv/kv_cache.h"

namespace qevict::cli {

inline constexpr char kMapFull = 'F', kMapQuantized = 'q', kMapEvicted = '.', kMapLocal = 'L';

// One character a window, oldest first; the windows of the local zone last. On a precision ladder
// Quantized windows are the digit of their bits. Where heads are routed
// apart, those of the first KV head.
std::string tier_map(const KvCache& cache, int layer);
// The same with a colour for each tier.
std::string coloured(const std::string& map);
// Does standard output show colours? (a terminal that knows them; NO_COLOR is respected)
bool stdout_shows_colour();

}  // namespace qevict::cli
