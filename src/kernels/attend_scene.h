// Random tiers and queries for the tests of the decode kernels. Every buffer has exactly the
// documented size, so that a sanitizer sees a read beyond it.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace qevict {

struct AttendShape {
  int head_dim = 64, group_size = 7, window = 8, bits = 2;
  RopePairing pairing = RopePairing::Neox;
  GridFormat key_grid = GridFormat::F16, value_grid = GridFormat::F16;
  float key_bias = 0.0F;  // on every 11th channel of quantised keys with F16 grids
  Geometry geometry() const {
    return {2 * group_size, 2, head_dim, window, bits, pairing, key_grid, value_grid};
  }
  std::string name() const {
    return "D" + std::to_string(head_dim) + " g" + std::to_string(group_size) + " window" +
           std::to_string(window) + " bits" + std::to_string(bits) +
           (pairing == RopePairing::Neox ? " neox" : " interleaved") + " grids " +
           std::to_string(grid_bytes(key_grid)) + " " + std::to_string(grid_bytes(value_grid));
  }
};

// One KV head's result. mass: of each window (or recent token) and query head, normalised.
struct Attended {
  std::vector<float> out, l, mass;
  friend bool operator==(const Attended&, const Attended&) = default;
};

inline double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / size);
}

inline std::vector<const KernelTable*> simd_kernels() {
  std::vector<const KernelTable*> tables;
  for (const std::string& isa : available_isas()) {
    if (isa != "reference") tables.push_back(find_kernels(isa));
  }
  return tables;
}

// Full and Quantized groups with the given numbers of lanes, and n_recent tokens of the recent
// zone; attention is computed for the second KV head.
class AttendScene {
 public:
  AttendScene(const AttendShape& shape, const std::vector<int>& lanes, int n_recent = 1)
      : g_(shape.geometry()),
        size_(g_.group_size()),
        rope_(RopeSpec::plain(g_.pairing, g_.head_dim, 1e4)),
        n_recent_(n_recent),
        capacity_((n_recent + kLanes) / kLanes * kLanes),
        key_bias_(shape.key_bias) {
    const float scale = 2.0F / std::sqrt(static_cast<float>(g_.head_dim));
    q_ = normals(std::size_t(size_) * g_.head_dim, scale);
    std::vector<float> cos(std::size_t(g_.window) * g_.head_dim / 2);
    std::vector<float> sin(cos.size());
    for (int j = 0; j < g_.window; ++j) {
      rope_angles(rope_, j, cos.data() + j * g_.head_dim / 2, sin.data() + j * g_.head_dim / 2);
    }
    cos_ = cos;
    sin_ = sin;
    range_keys_ = random_range(g_.head_dim, 1.0F);
    range_values_ = random_range(1, 0.5F);
    for (const int n : lanes) add_groups(n);
    add_recent();
  }

  void scale_queries(float factor) {
    for (float& x : q_) x *= factor;
  }

  // power 0: masses are not asked for.
  Attended full(const KernelTable& table, float power = 1.0F) const {
    State state(*this);
    Mass mass(*this, power);
    table.attend_full(
        {&g_, 1, q_.data(), full_.data(), int(full_.size()), state.ref(), mass.ref()});
    return finish(state, mass);
  }

  Attended quantized(const KernelTable& table, float power = 1.0F) const {
    State state(*this);
    Mass mass(*this, power);
    const Prepared prepared(*this, table);
    table.attend_quantized({&g_, 1, prepared.q_back.data(), prepared.phases.data(),
                            quantized_.data(), int(quantized_.size()), state.ref(), mass.ref(),
                            range()});
    return finish(state, mass);
  }

  Attended recent(const KernelTable& table, float power = 1.0F) const {
    State state(*this);
    std::vector<float> sum(std::size_t(size_) * capacity_, -1.0F);
    std::vector<float> max(size_);
    const bool wanted = power != 0.0F;
    table.attend_recent({&g_, 1, q_.data(), recent_ref(), state.ref(),
                         wanted ? sum.data() : nullptr, wanted ? max.data() : nullptr,
                         wanted ? power : 1.0F});
    Attended result = finish(state, Mass(*this, 0.0F));
    if (!wanted) return result;
    for (int h = 0; h < size_; ++h) {
      for (int t = 0; t < capacity_; ++t) {
        result.mass.push_back(
            normalised(sum[std::size_t(h) * capacity_ + t], max[h], state, h, power));
      }
    }
    return result;
  }

  Attended full_in_steps(const KernelTable& table) const {
    State state(*this);
    for (const GroupRef& group : full_) {
      table.attend_full({&g_, 1, q_.data(), &group, 1, state.ref(), {}});
    }
    return finish(state, Mass(*this, 0.0F));
  }

  Attended quantized_in_steps(const KernelTable& table) const {
    State state(*this);
    const Prepared prepared(*this, table);
    for (std::size_t i = 0; i < quantized_.size(); ++i) {
      table.attend_quantized({&g_,
                              1,
                              prepared.q_back.data(),
                              prepared.phases.data() + i * g_.head_dim * kLanes,
                              &quantized_[i],
                              1,
                              state.ref(),
                              {},
                              range()});
    }
    return finish(state, Mass(*this, 0.0F));
  }

  // All tiers into one state, or each into its own, merged afterwards.
  Attended all_tiers_continued(const KernelTable& table) const { return all_tiers(table, false); }
  Attended all_tiers_merged(const KernelTable& table) const { return all_tiers(table, true); }

 private:
  struct State {
    explicit State(const AttendScene& s)
        : o(std::size_t(s.size_) * s.g_.head_dim), m(s.size_), l(s.size_) {
      softmax_reset(ref(), s.size_, s.g_.head_dim);
    }
    SoftmaxState ref() { return {o.data(), m.data(), l.data()}; }
    std::vector<float> o, m, l;
  };
  struct Mass {
    Mass(const AttendScene& s, float p)
        : power(p),
          sum(s.full_.size() * s.size_ * kLanes, -1.0F),
          max(s.full_.size() * s.size_, std::numeric_limits<float>::quiet_NaN()) {}
    GroupMass ref() {
      return power == 0.0F ? GroupMass{} : GroupMass{sum.data(), max.data(), power};
    }
    float power;
    std::vector<float> sum, max;
  };
  struct Prepared {
    Prepared(const AttendScene& s, const KernelTable& table)
        : q_back(query_back_floats(s.g_)), phases(s.quantized_.size() * s.g_.head_dim * kLanes) {
      const WindowPhases base(s.rope_, 5, s.g_.window, 1000);
      table.rotate_queries_back(s.g_, s.q_.data(), s.cos_.data(), s.sin_.data(), q_back.data());
      for (std::size_t i = 0; i < s.quantized_.size(); ++i) {
        std::int32_t windows[kLanes];
        for (int n = 0; n < kLanes; ++n) windows[n] = int(i) * 170 + n * 7;
        table.window_phases(base, windows, s.quantized_[i].lanes,
                            phases.data() + i * s.g_.head_dim * kLanes);
      }
    }
    std::vector<float> q_back, phases;
  };

  static float normalised(float sum, float max, const State& state, int h, float power) {
    if (state.l[h] == 0.0F) return sum;
    return static_cast<float>(sum * std::exp(double{power} * (max - state.m[h])) /
                              std::pow(double{state.l[h]}, double{power}));
  }

  Attended finish(const State& state, const Mass& mass) const {
    Attended result;
    result.out = state.o;
    result.l = state.l;
    for (int h = 0; h < size_; ++h) {
      for (int d = 0; d < g_.head_dim; ++d) {
        if (state.l[h] > 0.0F) result.out[std::size_t(h) * g_.head_dim + d] /= state.l[h];
      }
    }
    if (mass.power == 0.0F) return result;
    for (std::size_t i = 0; i < mass.sum.size(); ++i) {
      const int h = int(i / kLanes % size_);
      result.mass.push_back(normalised(mass.sum[i], mass.max[i / kLanes], state, h, mass.power));
    }
    return result;
  }

  Attended all_tiers(const KernelTable& table, bool merged) const {
    State total(*this);
    State own(*this);
    State& state = merged ? own : total;
    const Prepared prepared(*this, table);
    const auto next_tier = [&] {
      if (!merged) return;
      softmax_merge(total.ref(), own.ref(), size_, g_.head_dim);
      softmax_reset(own.ref(), size_, g_.head_dim);
    };
    table.attend_full({&g_, 1, q_.data(), full_.data(), int(full_.size()), state.ref(), {}});
    next_tier();
    table.attend_quantized({&g_,
                            1,
                            prepared.q_back.data(),
                            prepared.phases.data(),
                            quantized_.data(),
                            int(quantized_.size()),
                            state.ref(),
                            {},
                            range()});
    next_tier();
    table.attend_recent({&g_, 1, q_.data(), recent_ref(), state.ref(), nullptr, nullptr, 1.0F});
    next_tier();
    return finish(total, Mass(*this, 0.0F));
  }

  std::vector<float> normals(std::size_t n, float scale) {
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (float& v : x) v = normal(random_) * scale;
    return x;
  }
  std::vector<fp16_t> half_normals(std::size_t n, float scale) {
    std::vector<fp16_t> x;
    for (const float v : normals(n, scale)) x.push_back(fp32_to_fp16(v));
    return x;
  }
  std::uint8_t* new_bytes(std::size_t n) {
    buffers_.push_back(std::make_unique<std::uint8_t[]>(n));
    return buffers_.back().get();
  }

  void add_groups(int lanes) {
    const std::size_t items = g_.full_window_bytes() / 4;
    std::uint8_t* full = new_bytes(g_.full_window_bytes() * lanes);
    for (int lane = 0; lane < lanes; ++lane) {
      full_group_store(g_, full, lanes, lane, half_normals(items, 1.0F).data(),
                       half_normals(items, 1.0F).data());
    }
    full_.push_back({full, lanes});
    if (g_.codes_fit()) add_quantized_group(lanes);
  }

  void add_quantized_group(int lanes) {
    std::uint8_t* group = new_bytes(g_.quantized_window_bytes() * lanes);
    std::vector<std::uint8_t> block(g_.quantized_window_bytes());
    for (int lane = 0; lane < lanes; ++lane) {
      for (std::uint8_t& byte : block) byte = static_cast<std::uint8_t>(random_());
      for (int h = 0; h < g_.n_kv_heads; ++h) {
        const QuantBlock b = quant_block(g_, block.data(), h);
        // About as wide as with 2 bits, whatever the number of levels.
        const float size = 3.0F / static_cast<float>((1 << g_.quant_bits) - 1);
        if (b.k_scale != nullptr) {
          fill(b.k_scale, g_.head_dim, 0.3F * size, 0.1F * size);
          fill(b.k_zero, g_.head_dim, -0.6F, 0.3F);
          for (int c = 0; c < g_.head_dim; c += 11) {
            b.k_zero[c] = fp32_to_fp16(fp16_to_fp32(b.k_zero[c]) + key_bias_);
          }
        } else {
          fill_ends(g_.key_grid, b.k_grid, g_.head_dim);
        }
        if (b.v_scale != nullptr) {
          fill(b.v_scale, g_.window, 0.4F * size, 0.1F * size);
          fill(b.v_zero, g_.window, -0.5F, 0.2F);
        } else {
          fill_ends(g_.value_grid, b.v_grid, g_.window);
        }
      }
      quant_group_store(g_, group, lanes, lane, block.data());
    }
    quantized_.push_back({group, lanes});
  }

  void fill(fp16_t* grid, int n, float mean, float spread) {
    const std::vector<float> x = normals(n, spread);
    // Scales are positive.
    for (int i = 0; i < n; ++i) {
      grid[i] = fp32_to_fp16(mean > 0.0F ? std::abs(mean + x[i]) : mean + x[i]);
    }
  }

  void fill_ends(GridFormat format, std::uint8_t* grid, int n) {
    const int top = grid_top(format);
    for (int i = 0; i < n; ++i) {
      const int a = int(random_() % unsigned(top));
      const int b = a + 1 + int(random_() % unsigned(top - a));
      grid[i] = std::uint8_t(format == GridFormat::U4 ? a + 16 * b : a);
      if (format == GridFormat::U8) grid[n + i] = std::uint8_t(b);
    }
  }

  // [H][2][n]: low, width.
  std::vector<fp16_t> random_range(int n, float size) {
    std::vector<fp16_t> range;
    for (int i = 0; i < 2 * g_.n_kv_heads; ++i) {
      for (const float x : normals(std::size_t(n), 0.2F * size)) {
        range.push_back(fp32_to_fp16(i % 2 == 0 ? x - 1.5F * size : std::abs(x) + 2.5F * size));
      }
    }
    return range;
  }
  QuantRange range() const { return {range_keys_.data(), range_values_.data()}; }

  void add_recent() {
    constexpr fp16_t kNan16 = 0x7e00;
    const std::size_t n = std::size_t(g_.n_kv_heads) * g_.head_dim * capacity_;
    recent_k_ = half_normals(n, 1.0F);
    recent_v_ = half_normals(n, 1.0F);
    for (std::size_t i = 0; i < n; ++i) {
      if (int(i % capacity_) >= n_recent_) recent_k_[i] = kNan16;
      if (int(i / g_.head_dim % capacity_) >= n_recent_) recent_v_[i] = kNan16;
    }
  }
  RecentRef recent_ref() const {
    return {recent_k_.data(), recent_v_.data(), capacity_, n_recent_};
  }

  Geometry g_;
  int size_;
  RopeSpec rope_;
  int n_recent_, capacity_;
  float key_bias_;
  std::mt19937 random_{1};
  std::vector<float> q_, cos_, sin_;
  std::vector<std::unique_ptr<std::uint8_t[]>> buffers_;
  std::vector<GroupRef> full_, quantized_;
  std::vector<fp16_t> recent_k_, recent_v_, range_keys_, range_values_;
};

}  // namespace qevict
