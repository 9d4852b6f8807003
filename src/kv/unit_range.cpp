#include "kv/unit_range.h"

#include "base/check.h"

namespace qevict {
namespace {

Geometry one_head(Geometry g) {
  g.n_heads = g.group_size();
  g.n_kv_heads = 1;
  return g;
}

}  // namespace

std::size_t head_extreme_floats(const Geometry& g) { return range_extreme_floats(one_head(g)); }

void begin_head_extremes(const Geometry& g, float* extremes) { range_begin(one_head(g), extremes); }

void add_head_extremes(const Geometry& g, int n, const float* k_pre, const float* v,
                       float* extremes) {
  range_add(one_head(g), 0, n, k_pre, v, extremes);
}

void merge_head_extremes(const Geometry& g, const float* extremes, float* into) {
  range_merge(one_head(g), extremes, into);
}

UnitRange::UnitRange(const Geometry& grids)
    : geometry_(grids), extremes_(grids.n_kv_heads * head_extreme_floats(grids)) {
  for (int h = 0; h < geometry_.n_kv_heads; ++h) begin_head_extremes(geometry_, head(h));
}

void UnitRange::widen(const float* extremes) {
  for (int h = 0; h < geometry_.n_kv_heads && !fixed(); ++h) {
    merge_head_extremes(geometry_, extremes + h * head_extreme_floats(geometry_), head(h));
  }
}

void UnitRange::widen(int kv_head, int n, const float* k_pre, const float* v) {
  if (!fixed()) add_head_extremes(geometry_, n, k_pre, v, head(kv_head));
}

void UnitRange::fix() {
  QE_CHECK(used());
  if (fixed()) return;
  const std::ptrdiff_t dim = geometry_.head_dim;
  keys_.resize(static_cast<std::size_t>(2 * geometry_.n_kv_heads * dim));
  values_.resize(std::size_t{2} * geometry_.n_kv_heads);
  for (int h = 0; h < geometry_.n_kv_heads; ++h) {
    QE_CHECK(head(h)[0] <= head(h)[dim]);
    range_finish(one_head(geometry_), head(h), keys_.data() + 2 * h * dim, values_.data() + 2 * h);
  }
}

QuantRange UnitRange::view() const {
  return fixed() ? QuantRange{keys_.data(), values_.data()} : QuantRange{};
}

}  // namespace qevict
