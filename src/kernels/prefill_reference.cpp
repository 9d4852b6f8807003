// Prompt attention, the specification: every query row alone, two passes, sums in double.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/fp16.h"
#include "kernels/quant_view.h"
#include "kernels/tables.h"

namespace qevict {
namespace {

// Reads single keys and values of one KV head out of their stores.
class KeyReader {
 public:
  explicit KeyReader(const PrefillParams& p) : p_(p), g_(*p.geometry), dim_(g_.head_dim) {}

  void full(int group, int lane, int j, double* k, double* v) const {
    const GroupRef& ref = p_.full[group];
    const std::ptrdiff_t n = ref.lanes;
    const std::ptrdiff_t part = n * g_.window * dim_;
    const auto* keys = reinterpret_cast<const fp16_t*>(ref.data) + 2 * part * p_.kv_head;
    const fp16_t* values = keys + part;
    for (std::ptrdiff_t c = 0; c < dim_; ++c) {
      k[c] = fp16_to_fp32(keys[(j * dim_ + c) * n + lane]);
      v[c] = fp16_to_fp32(values[(std::ptrdiff_t{lane} * g_.window + j) * dim_ + c]);
    }
  }

  void quantized(int group, int lane, int j, double* k, double* v) const {
    const GroupRef& ref = p_.quantized[group];
    const Geometry& g = quantized_geometry(p_, group);
    const QuantView view = quant_view(g, ref.data, ref.lanes, p_.kv_head);
    for (int c = 0; c < g.head_dim; ++c) {
      k[c] = quant_key(g, view, p_.quantized_range, p_.kv_head, lane, j, c);
      v[c] = quant_value(g, view, p_.quantized_range, p_.kv_head, lane, j, c);
    }
    rotate(group, lane, j, k);
  }

  void row(std::ptrdiff_t row, double* k, double* v) const {
    for (std::ptrdiff_t c = 0; c < dim_; ++c) {
      k[c] = fp16_to_fp32(p_.k_rows[row * dim_ + c]);
      v[c] = fp16_to_fp32(p_.v_rows[row * dim_ + c]);
    }
  }

 private:
  // The window's base phase, then j positions more.
  void rotate(std::ptrdiff_t group, int lane, int j, double* k) const {
    const std::ptrdiff_t pairs = dim_ / 2;
    for (std::ptrdiff_t i = 0; i < pairs; ++i) {
      const float* base = p_.phases + (group * pairs + i) * 2 * kLanes + lane;
      const double cos_j = std::cos(j * p_.rope->inv_freq[i]);
      const double sin_j = std::sin(j * p_.rope->inv_freq[i]);
      const double cos = base[0] * cos_j - base[kLanes] * sin_j;
      const double sin = base[kLanes] * cos_j + base[0] * sin_j;
      double& a = k[g_.pairing == RopePairing::Neox ? i : 2 * i];
      double& b = k[g_.pairing == RopePairing::Neox ? i + pairs : 2 * i + 1];
      const double rotated = a * cos - b * sin;
      b = a * sin + b * cos;
      a = rotated;
    }
  }

  const PrefillParams& p_;
  const Geometry& g_;
  std::ptrdiff_t dim_;
};

constexpr int kNoWindow = -1;

// Calls visit(window, k, v) for every key that sees row_end rows; window is its place in the
// masses.
template <class Visit>
void for_each_key(const PrefillParams& p, int row_end, double* k, double* v, Visit&& visit) {
  const KeyReader reader(p);
  const int omega = p.geometry->window;
  for (int group = 0; group < p.n_full; ++group) {
    for (int lane = 0; lane < p.full[group].lanes; ++lane) {
      for (int j = 0; j < omega; ++j) {
        reader.full(group, lane, j, k, v);
        visit(group * kLanes + lane, k, v);
      }
    }
  }
  for (int group = 0; group < p.n_quantized; ++group) {
    for (int lane = 0; lane < p.quantized[group].lanes; ++lane) {
      for (int j = 0; j < omega; ++j) {
        reader.quantized(group, lane, j, k, v);
        visit((p.n_full + group) * kLanes + lane, k, v);
      }
    }
  }
  const int first_region_window = (p.n_full + p.n_quantized) * kLanes;
  for (int row = 0; row < row_end; ++row) {
    reader.row(row, k, v);
    visit(row < p.n_sink_rows ? kNoWindow : first_region_window + (row - p.n_sink_rows) / omega, k,
          v);
  }
}

double score(const float* q, const double* k, int dim, float scale) {
  double sum = 0.0;
  for (int c = 0; c < dim; ++c) sum += q[c] * k[c];
  return sum * scale;
}

}  // namespace

void reference_prefill_tile(const PrefillParams& p) noexcept {
  const Geometry& g = *p.geometry;
  const int dim = g.head_dim;
  const int region_rows = std::max(0, p.q_row0 + p.q_end - p.n_sink_rows);
  const int n_windows =
      (p.n_full + p.n_quantized) * kLanes + (region_rows + g.window - 1) / g.window;

  auto* k = static_cast<double*>(p.scratch);
  double* v = k + dim;
  double* o = v + dim;
  double* mass = o + dim;

  for (int h = 0; h < g.group_size(); ++h) {
    std::fill_n(mass, n_windows, 0.0);
    for (int t = p.q_begin; t < p.q_end; ++t) {
      const std::ptrdiff_t at =
          t * prefill_stride(p) + std::ptrdiff_t{p.kv_head * g.group_size() + h} * dim;
      const float* q = p.q + at;
      const int row_end = p.q_row0 + t + 1;

      double m = -std::numeric_limits<double>::infinity();
      for_each_key(p, row_end, k, v, [&](int, const double* key, const double*) {
        m = std::max(m, score(q, key, dim, p.scale));
      });
      double l = 0.0;
      std::fill_n(o, dim, 0.0);
      for_each_key(p, row_end, k, v, [&](int, const double* key, const double* value) {
        const double e = std::exp(score(q, key, dim, p.scale) - m);
        l += e;
        for (int c = 0; c < dim; ++c) o[c] += e * value[c];
      });
      for (int c = 0; c < dim; ++c) p.out[at + c] = static_cast<float>(o[c] / l);
      if (p.mass == nullptr) continue;
      for_each_key(p, row_end, k, v, [&](int window, const double* key, const double*) {
        if (window == kNoWindow) return;
        const double probability = std::exp(score(q, key, dim, p.scale) - m) / l;
        mass[window] += p.power == 1.0F ? probability : std::pow(probability, p.power);
      });
    }
    if (p.mass == nullptr) continue;
    for (int w = 0; w < n_windows; ++w) {
      p.mass[h * p.mass_stride + w] = static_cast<float>(mass[w]);
    }
  }
}

}  // namespace qevict
