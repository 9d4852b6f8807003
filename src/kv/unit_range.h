// The super-ranges of the grids of one unit (QuantRange): collected while prompts are read, fixed
// when its first window is quantised. What lies outside afterwards is clamped.
//
// Extremes are collected by KV head, so that a layer's are those of its heads one after the other:
// of a head, [2][D] of keys before RoPE, then [2] of values: lowest, highest.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/codec.h"

namespace qevict {

// One KV head's extremes, to be used by one thread.
std::size_t head_extreme_floats(const Geometry& g);
void begin_head_extremes(const Geometry& g, float* extremes);
// n tokens; keys before RoPE and values, [n][D].
void add_head_extremes(const Geometry& g, int n, const float* k_pre, const float* v,
                       float* extremes);
void merge_head_extremes(const Geometry& g, const float* extremes, float* into);

class UnitRange {
 public:
  UnitRange() = default;                      // for fp16 grids: collects nothing
  explicit UnitRange(const Geometry& grids);  // grids are not fp16

  bool used() const { return !extremes_.empty(); }
  bool fixed() const { return !keys_.empty(); }
  // extremes: of the unit's heads. Nothing happens once the range is fixed.
  void widen(const float* extremes);
  void widen(int kv_head, int n, const float* k_pre, const float* v);
  // At least one token was added.
  void fix();
  // Null pointers until fixed.
  QuantRange view() const;
  std::size_t bytes() const { return (keys_.size() + values_.size()) * sizeof(fp16_t); }

 private:
  float* head(int h) { return extremes_.data() + h * head_extreme_floats(geometry_); }

  Geometry geometry_;
  std::vector<float> extremes_;  // [H]
  std::vector<fp16_t> keys_, values_;
};

}  // namespace qevict
