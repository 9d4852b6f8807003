// Buffers of one routing event, reused by all layers and events of a cache.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/fp16.h"
#include "kv/policy.h"
#include "kv/router.h"

namespace qevict {

// One window on its way to another tier or rung: what must survive the move of its old slot.
struct WindowMove {
  WindowId id = 0;
  Tier from = Tier::Local;
  SlotId slot = -1;  // in `from`'s slab
  double mass = 0.0;
  float key_norm = 0.0F;
  RungId rung = 0;        // in Quantized, before the move
  std::size_t heads = 0;  // where its head record begins in RouteScratch::head_records
};

struct RouteScratch {
  std::vector<std::int32_t> by_window;  // tier and slot of each ranked window, while listing
  std::vector<WindowView> candidates;   // ascending id
  std::vector<SlotId> slots;            // of the candidates; -1 = from the local zone
  std::vector<float> scores;
  RoutingPlan plan;
  LadderPlan ladder;
  std::vector<RungId> stored;        // parallel to the candidates: where they are on the ladder
  std::vector<HeadRecord> heads;     // parallel to the candidates
  std::vector<double> head_inverse;  // [kHeadSignals][n_heads]
  std::vector<float> head_records;   // of the windows that move
  std::vector<WindowMove> to_full;
  std::array<std::vector<WindowMove>, kMaxRungs> to_quantized;
  std::vector<SlotId> freed_full;
  std::array<std::vector<SlotId>, kMaxRungs> freed_quantized;
  std::vector<fp16_t> k, v;         // [H][Omega][D]
  std::vector<std::uint8_t> block;  // one QuantBlock, and another one
  std::vector<float> floats;        // codec scratch
};

}  // namespace qevict
