// Small types of the cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qevict {

using TokenPos = std::int32_t;  // absolute position; never renumbered
using WindowId = std::int32_t;  // window w covers positions n_sink + w*Omega .. + Omega - 1
using SlotId = std::int32_t;    // index inside a tier's slab

// Local: not yet ranked (inside the local zone). Evicted windows have no record.
enum class Tier : std::uint8_t { Local, Full, Quantized, Evicted };

// Windows that a layer may hold, from the byte budget (method.md section 3).
struct TierQuota {
  std::int64_t n_full = 0;
  std::int64_t n_quantized = 0;
  friend bool operator==(const TierQuota&, const TierQuota&) = default;
};

// Payload and grid bytes held, by place. Dormant entries are metadata.
struct TierBytes {
  std::size_t sink = 0, local = 0, full = 0, quantized = 0;
  std::size_t total() const { return sink + local + full + quantized; }
  TierBytes& operator+=(const TierBytes& o) {
    sink += o.sink, local += o.local, full += o.full, quantized += o.quantized;
    return *this;
  }
};

struct MetadataBytes {
  std::size_t positions = 0, ledger = 0, dormant = 0, scores = 0;
  std::size_t total() const { return positions + ledger + dormant + scores; }
  MetadataBytes& operator+=(const MetadataBytes& o) {
    positions += o.positions, ledger += o.ledger, dormant += o.dormant, scores += o.scores;
    return *this;
  }
};

}  // namespace qevict
