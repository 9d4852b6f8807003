#include "kv/unit_range.h"

#include "base/check.h"

namespace qevict {

UnitRange::UnitRange(const Geometry& grids)
    : geometry_(grids), extremes_(range_extreme_floats(grids)) {
  range_begin(geometry_, extremes_.data());
}

void UnitRange::widen(const float* extremes) {
  if (!fixed()) range_merge(geometry_, extremes, extremes_.data());
}

void UnitRange::widen(int kv_head, int n, const float* k_pre, const float* v) {
  if (!fixed()) range_add(geometry_, kv_head, n, k_pre, v, extremes_.data());
}

void UnitRange::fix() {
  QE_CHECK(used());
  if (fixed()) return;
  QE_CHECK(extremes_[0] <= extremes_[static_cast<std::size_t>(geometry_.head_dim)]);
  keys_.resize(std::size_t{2} * geometry_.n_kv_heads * geometry_.head_dim);
  values_.resize(std::size_t{2} * geometry_.n_kv_heads);
  range_finish(geometry_, extremes_.data(), keys_.data(), values_.data());
}

QuantRange UnitRange::view() const {
  return fixed() ? QuantRange{keys_.data(), values_.data()} : QuantRange{};
}

}  // namespace qevict
