// The specification of the decode kernels: one loop nest per formula, sums in double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/quant_view.h"
#include "kernels/tables.h"

namespace qevict {
namespace {

constexpr double kMinusInf = -std::numeric_limits<double>::infinity();

// Where each value of one KV head's part of a group stands (layout.h).
struct FullHead {
  FullHead(const Geometry& g, const GroupRef& group, int kv_head) : g_(g), lanes_(group.lanes) {
    const std::size_t items = static_cast<std::size_t>(g.window) * g.head_dim * group.lanes;
    k_ = reinterpret_cast<const fp16_t*>(group.data) + 2 * items * kv_head;
    v_ = k_ + items;
  }
  float key(int lane, int j, int d) const {
    return fp16_to_fp32(k_[(j * g_.head_dim + d) * lanes_ + lane]);
  }
  float value(int lane, int j, int d) const {
    return fp16_to_fp32(v_[(lane * g_.window + j) * g_.head_dim + d]);
  }

 private:
  const Geometry& g_;
  int lanes_;
  const fp16_t* k_;
  const fp16_t* v_;
};

// One head's online softmax in double; continues and finishes the caller's fp32 state.
struct Softmax {
  Softmax(const SoftmaxState& state, int head, int head_dim) : dim(head_dim) {
    o_out = state.o + static_cast<std::ptrdiff_t>(head) * dim;
    m_out = state.m + head;
    l_out = state.l + head;
    std::copy_n(o_out, dim, o);
    m = *m_out;
    l = *l_out;
  }
  ~Softmax() {
    for (int d = 0; d < dim; ++d) o_out[d] = static_cast<float>(o[d]);
    *m_out = static_cast<float>(m);
    *l_out = static_cast<float>(l);
  }
  // m stays exactly representable in fp32, so that o and l are relative to the m that is stored.
  void raise_max(double score) {
    const double rounded = static_cast<float>(score);
    if (rounded <= m) return;
    const double shrink = m == kMinusInf ? 0.0 : std::exp(m - rounded);
    for (int d = 0; d < dim; ++d) o[d] *= shrink;
    l *= shrink;
    m = rounded;
  }

  int dim;
  double o[kMaxHeadDim];
  double m, l;
  float *o_out, *m_out, *l_out;
};

// score(lane, j) and value(lane, j, d) describe one group.
template <typename Score, typename Value>
void attend_group(int lanes, int window, Softmax& softmax, float power, float* window_sum,
                  float* group_max, const Score& score, const Value& value) {
  double scores[kMaxWindow][kLanes];
  double highest = kMinusInf;
  for (int j = 0; j < window; ++j) {
    for (int n = 0; n < lanes; ++n) {
      scores[j][n] = score(n, j);
      highest = std::max(highest, scores[j][n]);
    }
  }
  softmax.raise_max(highest);
  if (group_max != nullptr) *group_max = static_cast<float>(highest);
  for (int n = 0; n < kLanes; ++n) {
    double sum = 0.0;
    for (int j = 0; j < window && n < lanes; ++j) {
      const double p = std::exp(scores[j][n] - softmax.m);
      softmax.l += p;
      for (int d = 0; d < softmax.dim; ++d) softmax.o[d] += p * value(n, j, d);
      sum += std::exp(power * (scores[j][n] - static_cast<float>(highest)));
    }
    if (window_sum != nullptr) window_sum[n] = static_cast<float>(sum);
  }
}

float* mass_sum(const GroupMass& mass, int group, int g_size, int head) {
  if (mass.window_sum == nullptr) return nullptr;
  return mass.window_sum + (static_cast<std::ptrdiff_t>(group) * g_size + head) * kLanes;
}

float* mass_max(const GroupMass& mass, int group, int g_size, int head) {
  return mass.group_max == nullptr ? nullptr : mass.group_max + group * g_size + head;
}

}  // namespace

void reference_attend_full(const AttendFullParams& p) noexcept {
  const Geometry& g = *p.geometry;
  const int g_size = g.group_size();
  for (int h = 0; h < g_size; ++h) {
    const float* q = p.q + static_cast<std::ptrdiff_t>(h) * g.head_dim;
    Softmax softmax(p.state, h, g.head_dim);
    for (int i = 0; i < p.n_groups; ++i) {
      const FullHead head(g, p.groups[i], p.kv_head);
      const auto score = [&](int n, int j) {
        double sum = 0.0;
        for (int d = 0; d < g.head_dim; ++d) sum += static_cast<double>(q[d]) * head.key(n, j, d);
        return sum;
      };
      const auto value = [&](int n, int j, int d) { return head.value(n, j, d); };
      attend_group(p.groups[i].lanes, g.window, softmax, p.mass.power,
                   mass_sum(p.mass, i, g_size, h), mass_max(p.mass, i, g_size, h), score, value);
    }
  }
}

void reference_attend_quantized(const AttendQuantizedParams& p) noexcept {
  const Geometry& g = *p.geometry;
  const int g_size = g.group_size();
  const int pairs = g.head_dim / 2;
  const bool neox = g.pairing == RopePairing::Neox;
  for (int h = 0; h < g_size; ++h) {
    Softmax softmax(p.state, h, g.head_dim);
    for (int i = 0; i < p.n_groups; ++i) {
      const QuantView view = quant_view(g, p.groups[i].data, p.groups[i].lanes, p.kv_head);
      const float* phases = p.phases + static_cast<std::ptrdiff_t>(i) * pairs * 2 * kLanes;
      const auto score = [&](int n, int j) {
        const float* q = p.q_back + (static_cast<std::ptrdiff_t>(j) * g_size + h) * g.head_dim;
        double sum = 0.0;
        for (int c = 0; c < pairs; ++c) {
          const int first = neox ? c : 2 * c;
          const int second = neox ? c + pairs : 2 * c + 1;
          const double cos = phases[(c * 2 + 0) * kLanes + n];
          const double sin = phases[(c * 2 + 1) * kLanes + n];
          const double a = quant_key(g, view, p.range, p.kv_head, n, j, first);
          const double b = quant_key(g, view, p.range, p.kv_head, n, j, second);
          sum += q[first] * (a * cos - b * sin) + q[second] * (a * sin + b * cos);
        }
        return sum;
      };
      const auto value = [&](int n, int j, int d) {
        return quant_value(g, view, p.range, p.kv_head, n, j, d);
      };
      attend_group(p.groups[i].lanes, g.window, softmax, p.mass.power,
                   mass_sum(p.mass, i, g_size, h), mass_max(p.mass, i, g_size, h), score, value);
    }
  }
}

void reference_attend_recent(const AttendRecentParams& p) noexcept {
  const Geometry& g = *p.geometry;
  const RecentRef& r = p.recent;
  const fp16_t* k = r.k + static_cast<std::ptrdiff_t>(p.kv_head) * g.head_dim * r.capacity;
  const fp16_t* v = r.v + static_cast<std::ptrdiff_t>(p.kv_head) * g.head_dim * r.capacity;
  for (int h = 0; h < g.group_size(); ++h) {
    const float* q = p.q + static_cast<std::ptrdiff_t>(h) * g.head_dim;
    const auto score = [&](int t) {
      double sum = 0.0;
      for (int d = 0; d < g.head_dim; ++d) {
        sum += static_cast<double>(q[d]) *
               fp16_to_fp32(k[static_cast<std::ptrdiff_t>(d) * r.capacity + t]);
      }
      return sum;
    };
    Softmax softmax(p.state, h, g.head_dim);
    double highest = kMinusInf;
    for (int t = 0; t < r.n_tokens; ++t) highest = std::max(highest, score(t));
    if (r.n_tokens > 0) softmax.raise_max(highest);
    for (int t = 0; t < r.n_tokens; ++t) {
      const double s = score(t);
      const double weight = std::exp(s - softmax.m);
      softmax.l += weight;
      for (int d = 0; d < g.head_dim; ++d) {
        softmax.o[d] += weight * fp16_to_fp32(v[static_cast<std::ptrdiff_t>(t) * g.head_dim + d]);
      }
      if (p.token_sum != nullptr) {
        p.token_sum[static_cast<std::ptrdiff_t>(h) * r.capacity + t] =
            static_cast<float>(std::exp(p.power * (s - static_cast<float>(highest))));
      }
    }
    if (p.token_sum != nullptr) {
      std::fill(p.token_sum + static_cast<std::ptrdiff_t>(h) * r.capacity + r.n_tokens,
                p.token_sum + static_cast<std::ptrdiff_t>(h + 1) * r.capacity, 0.0F);
    }
    if (p.token_max != nullptr) {
      p.token_max[h] = r.n_tokens > 0 ? static_cast<float>(highest) : 0.0F;
    }
  }
}

void reference_rotate_queries_back(const Geometry& g, const float* q, const float* cos,
                                   const float* sin, float* q_back) noexcept {
  const int pairs = g.head_dim / 2;
  const bool neox = g.pairing == RopePairing::Neox;
  for (int j = 0; j < g.window; ++j) {
    for (int h = 0; h < g.group_size(); ++h) {
      const float* x = q + static_cast<std::ptrdiff_t>(h) * g.head_dim;
      float* y = q_back + (static_cast<std::ptrdiff_t>(j) * g.group_size() + h) * g.head_dim;
      for (int c = 0; c < pairs; ++c) {
        const int first = neox ? c : 2 * c;
        const int second = neox ? c + pairs : 2 * c + 1;
        const double a = x[first];
        const double b = x[second];
        const double cs = cos[j * pairs + c];
        const double sn = sin[j * pairs + c];
        y[first] = static_cast<float>(a * cs + b * sn);
        y[second] = static_cast<float>(b * cs - a * sn);
      }
    }
  }
}

void reference_window_phases(const WindowPhases& phases, const std::int32_t* windows, int lanes,
                             float* out) noexcept {
  for (int n = 0; n < kLanes; ++n) {
    const bool used = n < lanes;
    for (int c = 0; c < phases.pairs(); ++c) {
      double cos = 1.0;
      double sin = 0.0;
      if (used) {
        const double ca = phases.coarse_cos(windows[n])[c];
        const double sa = phases.coarse_sin(windows[n])[c];
        const double cb = phases.fine_cos(windows[n])[c];
        const double sb = phases.fine_sin(windows[n])[c];
        cos = ca * cb - sa * sb;
        sin = sa * cb + ca * sb;
      }
      out[(c * 2 + 0) * kLanes + n] = static_cast<float>(cos);
      out[(c * 2 + 1) * kLanes + n] = static_cast<float>(sin);
    }
  }
}

}  // namespace qevict
