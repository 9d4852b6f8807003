// P.V of quantised values in whole numbers (AVX-512 VNNI), for which Highway's AVX-512 target has
// no instructions. Internal to kernels/; attend_quantized-inl.h calls it.
//
// The weights p * scale of a group are rounded to 16 bits, relative to the largest one of their
// head and group; codes are exact. What rounding takes from the sum of the weights is given back as
// if every code were the mean one. The output's relative error is a few 1e-5. Two tokens a lane are
// multiplied and added at once, twice as many as in fp32.
#pragma once

#include "kernels/layout.h"

namespace qevict {

struct IntegerValues {
  const Geometry* geometry;
  QuantView view;
  const float* weights;  // [Omega][n_heads][kLanes], >= 0, 0 in lanes that do not exist
  int n_heads;           // at most 8
  float* o;              // [n_heads][stride], continued; whole vectors of 16 are written
  std::ptrdiff_t stride;
};

// Adds the codes times the weights to o. Null where the build has none.
using AddIntegerValues = void (*)(const IntegerValues&) noexcept;
AddIntegerValues vnni_add_values() noexcept;
// Whether this CPU runs it, given that it runs AVX-512.
bool cpu_has_vnni() noexcept;

}  // namespace qevict
