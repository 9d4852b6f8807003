// The super-ranges of the grids of one unit (QuantRange): collected while prompts are read, fixed
// when its first window is quantised. What lies outside afterwards is clamped.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/codec.h"

namespace qevict {

class UnitRange {
 public:
  UnitRange() = default;                      // for fp16 grids: collects nothing
  explicit UnitRange(const Geometry& grids);  // grids are not fp16

  bool used() const { return !extremes_.empty(); }
  bool fixed() const { return !keys_.empty(); }
  // Extremes that range_add() collected (codec.h). Nothing happens once the range is fixed.
  void widen(const float* extremes);
  // n tokens of one KV head; keys before RoPE and values, [n][D].
  void widen(int kv_head, int n, const float* k_pre, const float* v);
  // At least one token was added.
  void fix();
  // Null pointers until fixed.
  QuantRange view() const;
  std::size_t bytes() const { return (keys_.size() + values_.size()) * sizeof(fp16_t); }

 private:
  Geometry geometry_;
  std::vector<float> extremes_;
  std::vector<fp16_t> keys_, values_;
};

}  // namespace qevict
