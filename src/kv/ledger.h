// Write-once ledger of INT2 blocks (method.md section 6): dormant entries of promoted windows.
//
// An active entry's bytes live in the Quantized slab. Promotion moves them here, byte for byte;
// re-demotion moves the same bytes back; eviction frees them. Nothing is quantised twice.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kv/types.h"

namespace qevict {

class Ledger {
 public:
  void put(WindowId window, std::vector<std::uint8_t> block);
  bool contains(WindowId window) const { return blocks_.contains(window); }
  // The block's bytes, in place; must be contained.
  const std::vector<std::uint8_t>& block(WindowId window) const;
  std::vector<std::uint8_t> take(WindowId window);  // removes; must be contained
  void erase(WindowId window);                      // no-op when absent
  std::size_t size() const { return blocks_.size(); }
  std::size_t block_bytes() const { return block_bytes_; }  // dormant payload
  std::size_t entry_bytes() const;                          // bookkeeping
  std::vector<WindowId> windows() const;                    // ascending
  void clear();

 private:
  std::unordered_map<WindowId, std::vector<std::uint8_t>> blocks_;
  std::size_t block_bytes_ = 0;
};

}  // namespace qevict
