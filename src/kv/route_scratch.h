// Buffers of one routing event, reused by all layers and events of a cache.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fp16.h"
#include "kv/policy.h"
#include "kv/router.h"

namespace qevict {

// One window on its way to another tier: what must survive the move of its old slot.
struct WindowMove {
  WindowId id = 0;
  Tier from = Tier::Local;
  SlotId slot = -1;  // in `from`'s slab
  double mass = 0.0;
  float key_norm = 0.0F;
};

struct RouteScratch {
  std::vector<std::int32_t> by_window;  // tier and slot of each ranked window, while listing
  std::vector<WindowView> candidates;   // ascending id
  std::vector<SlotId> slots;            // of the candidates; -1 = from the local zone
  std::vector<float> scores;
  RoutingPlan plan;
  std::vector<WindowMove> to_full, to_quantized;
  std::vector<SlotId> freed_full, freed_quantized;
  std::vector<fp16_t> k, v;         // [H][Omega][D]
  std::vector<std::uint8_t> block;  // one QuantBlock
  std::vector<float> floats;        // codec scratch
};

}  // namespace qevict
