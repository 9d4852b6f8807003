// A prompt block with its compressed prefix, for the tests of prefill_tile.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace qevict {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  int head_dim, group_size, n_kv_heads, window, bits;
  RopePairing pairing = RopePairing::Neox;
  GridFormat key_grid = GridFormat::F16, value_grid = GridFormat::F16;
  Geometry geometry() const {
    return {
        group_size * n_kv_heads, n_kv_heads, head_dim, window, bits, pairing, key_grid, value_grid};
  }
};

struct Layout {
  std::vector<int> full_lanes{}, quantized_lanes{};
  int sinks = 0;
  int row0 = 0;      // rows before the block
  int n_tokens = 1;  // of the block
  // Geometries of the Quantized groups; empty: the shape's.
  std::vector<Shape> quantized_shapes{};
};

struct Result {
  std::vector<float> out, mass;  // mass: [group_size][n_windows]
};

// A block of a prompt with its prefix. All arrays have exactly the documented size, so that a
// sanitizer sees any read beyond them; the scratch starts as NaN.
class Scene {
 public:
  Scene(const Shape& shape, const Layout& layout, unsigned seed = 1)
      : g_(shape.geometry()), layout_(layout), random_(seed) {
    rope_ = RopeSpec::plain(g_.pairing, g_.head_dim, 1e4);
    q_ = normals<float>(std::size_t(layout.n_tokens) * g_.n_heads * g_.head_dim, 1.0F);
    n_rows_ = layout.row0 + layout.n_tokens;
    k_rows_ = normals<fp16_t>(std::size_t(n_rows_) * g_.head_dim, 1.0F);
    v_rows_ = normals<fp16_t>(std::size_t(n_rows_) * g_.head_dim, 1.0F);
    // Low ends; widths of 2 to 3.
    range_keys_ = normals<fp16_t>(std::size_t(2) * g_.n_kv_heads * g_.head_dim, 0.5F);
    range_values_ = normals<fp16_t>(std::size_t(2) * g_.n_kv_heads, 0.5F);
    for (int h = 0; h < g_.n_kv_heads; ++h) {
      for (int c = 0; c < g_.head_dim; ++c) {
        range_keys_[(2 * h + 1) * g_.head_dim + c] = fp32_to_fp16(2.0F + float(c % 8) / 8.0F);
      }
      range_values_[2 * h + 1] = fp32_to_fp16(2.5F);
    }
    for (const int lanes : layout.full_lanes) add_full(lanes);
    for (std::size_t i = 0; i < layout.quantized_lanes.size(); ++i) {
      quantized_geometry_.push_back(
          layout.quantized_shapes.empty() ? g_ : layout.quantized_shapes[i].geometry());
      add_quantized(quantized_geometry_.back(), layout.quantized_lanes[i]);
    }
  }

  const Geometry& geometry() const { return g_; }
  const RopeSpec& rope() const { return rope_; }
  int n_windows(int q_end) const {
    const int region = std::max(0, layout_.row0 + q_end - layout_.sinks);
    return kLanes * int(full_.size() + quantized_.size()) + (region + g_.window - 1) / g_.window;
  }

  // Appends rows that no query may see.
  void add_nan_rows(int n) {
    k_rows_.resize(k_rows_.size() + std::size_t(n) * g_.head_dim, fp32_to_fp16(kNan));
    v_rows_.resize(k_rows_.size(), fp32_to_fp16(kNan));
    n_rows_ += n;
  }

  Result run(const KernelTable& table, int q_begin, int q_end, float power = 1.0F,
             bool want_mass = true) const {
    Result result{std::vector<float>(q_.size(), kNan), {}};
    const int windows = n_windows(q_end);
    const std::ptrdiff_t stride = windows + 3;
    std::vector<float> mass(g_.group_size() * stride, kNan);
    const std::size_t bytes =
        prefill_scratch_bytes(g_, int(full_.size()), int(quantized_.size()), n_rows_);
    std::unique_ptr<void, void (*)(void*)> scratch(std::aligned_alloc(64, (bytes + 63) / 64 * 64),
                                                   std::free);
    std::memset(scratch.get(), 0xFF, bytes);
    PrefillParams p{.geometry = &g_, .kv_head = g_.n_kv_heads - 1, .q = q_.data()};
    p.out = result.out.data();
    p.scale = scale_ / std::sqrt(float(g_.head_dim));
    p.q_begin = q_begin;
    p.q_end = q_end;
    p.q_row0 = layout_.row0;
    p.k_rows = k_rows_.data();
    p.v_rows = v_rows_.data();
    p.n_sink_rows = layout_.sinks;
    p.full = full_.data();
    p.n_full = int(full_.size());
    p.quantized = quantized_.data();
    p.n_quantized = int(quantized_.size());
    std::vector<const Geometry*> geometries;
    for (const Geometry& g : quantized_geometry_) geometries.push_back(&g);
    if (!layout_.quantized_shapes.empty()) p.quantized_geometry = geometries.data();
    p.phases = phases_.data();
    p.quantized_range = {range_keys_.data(), range_values_.data()};
    p.rope = &rope_;
    p.mass = want_mass ? mass.data() : nullptr;
    p.mass_stride = stride;
    p.power = power;
    p.scratch = scratch.get();
    table.prefill_tile(p);
    for (int h = 0; h < g_.group_size() && want_mass; ++h) {
      const float* row = mass.data() + h * stride;
      result.mass.insert(result.mass.end(), row, row + windows);
      for (int i = windows; i < stride; ++i) EXPECT_TRUE(std::isnan(row[i])) << "written beyond n";
    }
    return result;
  }

  // The outputs of the tile's heads: [tokens][group_size][D].
  std::vector<float> tile(const Result& r, int q_begin, int q_end) const {
    std::vector<float> part;
    const std::size_t head = std::size_t(g_.group_size()) * g_.head_dim;
    for (int t = q_begin; t < q_end; ++t) {
      const auto at = r.out.begin() + (t * g_.n_kv_heads + g_.n_kv_heads - 1) * head;
      part.insert(part.end(), at, at + head);
    }
    return part;
  }

  template <class T>
  std::vector<T> normals(std::size_t n, float scale) {
    std::normal_distribution<float> normal;
    std::vector<T> x(n);
    for (T& e : x) {
      if constexpr (std::is_same_v<T, fp16_t>) {
        e = fp32_to_fp16(normal(random_) * scale);
      } else {
        e = normal(random_) * scale;
      }
    }
    return x;
  }

  // Windows of all KV heads, built elsewhere.
  void add_full_group(std::vector<std::uint8_t> bytes, int lanes) {
    storage_.push_back(std::move(bytes));
    full_.push_back({storage_.back().data(), lanes});
  }
  void add_quantized_group(std::vector<std::uint8_t> bytes, const std::vector<int>& positions) {
    storage_.push_back(std::move(bytes));
    quantized_.push_back({storage_.back().data(), int(positions.size())});
    const int pairs = g_.head_dim / 2;
    const std::size_t at = phases_.size();
    phases_.resize(at + std::size_t(pairs) * 2 * kLanes);
    for (int i = 0; i < pairs; ++i) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int position = lane < int(positions.size()) ? positions[lane] : 0;
        const double angle = position * rope_.inv_freq[i];
        phases_[at + i * 2 * kLanes + lane] = float(std::cos(angle));
        phases_[at + (i * 2 + 1) * kLanes + lane] = float(std::sin(angle));
      }
    }
  }

  Geometry g_;
  Layout layout_;
  std::mt19937 random_;
  RopeSpec rope_;
  std::vector<float> q_;
  std::vector<fp16_t> k_rows_, v_rows_, range_keys_, range_values_;
  int n_rows_ = 0;
  float scale_ = 1.0F;

 private:
  void add_full(int lanes) {
    const auto x = normals<fp16_t>(g_.full_window_bytes() * lanes / 2, 1.0F);
    std::vector<std::uint8_t> bytes(x.size() * 2);
    std::memcpy(bytes.data(), x.data(), bytes.size());
    add_full_group(std::move(bytes), lanes);
  }

  void add_quantized(const Geometry& g, int lanes) {
    std::vector<std::uint8_t> bytes;
    std::uniform_int_distribution<int> byte(0, 255);
    const auto codes = [&] {
      for (std::size_t i = 0; i < g.code_bytes_per_head() * lanes; ++i)
        bytes.push_back(byte(random_));
    };
    const auto halves = [&](int n, float scale) {
      for (const fp16_t x : normals<fp16_t>(std::size_t(n) * lanes, scale)) {
        bytes.push_back(x & 0xFF);
        bytes.push_back(x >> 8);
      }
    };
    // Ends a in the lower half of what there is, b in the upper one.
    const auto grid = [&](GridFormat format, int n) {
      if (format == GridFormat::F16) {
        halves(n, 0.9F / float((1 << g.quant_bits) - 1));
        halves(n, 1.0F);
        return;
      }
      for (int i = 0; i < n * lanes; ++i) {
        const int x = byte(random_);
        bytes.push_back(format == GridFormat::U4 ? x % 8 + 16 * (8 + x / 32) : x / 2);
      }
      for (int i = 0; i < n * lanes && format == GridFormat::U8; ++i) {
        bytes.push_back(128 + byte(random_) / 2);
      }
    };
    for (int h = 0; h < g_.n_kv_heads; ++h) {
      codes();
      grid(g.key_grid, g.head_dim);
      codes();
      grid(g.value_grid, g.window);
    }
    std::vector<int> positions;
    for (int i = 0; i < lanes; ++i) positions.push_back(5 + g_.window * (3 * i + i % 2));
    add_quantized_group(std::move(bytes), positions);
  }

  std::vector<std::vector<std::uint8_t>> storage_;
  std::vector<GroupRef> full_, quantized_;
  std::vector<Geometry> quantized_geometry_;
  std::vector<float> phases_;
};

}  // namespace qevict
