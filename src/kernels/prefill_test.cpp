// Every instruction set's prefill_tile against the scalar specification, and that against plain
// math.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/codec.h"
#include "kernels/kernels.h"
#include "kernels/prefill_scene.h"

namespace qevict {
namespace {

std::vector<const KernelTable*> simd_tables() {
  std::vector<const KernelTable*> tables;
  for (const std::string& isa : available_isas()) {
    const KernelTable* table = find_kernels(isa);
    if (table->prefill_tile == reference_kernels().prefill_tile) continue;
    if (isa != "avx512_vnni") tables.push_back(table);  // prompts as with avx512
  }
  return tables;
}

// And the matrix tiles' way through, whether this CPU has tiles or not.
std::vector<const KernelTable*> compared_tables() {
  std::vector<const KernelTable*> tables = simd_tables();
  if (const KernelTable* tiles = find_kernels("emulated_tiles")) tables.push_back(tiles);
  return tables;
}

// Matrix tiles keep 16 bits of every operand (panel_products.h), fp32 keeps 24.
double slack(const KernelTable& table) {
  const std::string name = table.name;
  return name == "amx" || name == "emulated_tiles" ? 20.0 : 1.0;
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected, double abs,
                 double rel, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], abs + rel * std::abs(expected[i])) << what << " at " << i;
  }
}

void compare_with_reference(const Scene& scene, int q_begin, int q_end, float power,
                            const std::string& what) {
  const Result expected = scene.run(reference_kernels(), q_begin, q_end, power);
  for (const KernelTable* table : compared_tables()) {
    const Result actual = scene.run(*table, q_begin, q_end, power);
    const std::string name = what + ", " + table->name;
    // fp32 scores of size ~5 and fp32 sums: a few 1e-6; a probability's error grows with the power.
    const double few = 1e-5 * slack(*table);
    expect_near(scene.tile(actual, q_begin, q_end), scene.tile(expected, q_begin, q_end), few, few,
                name);
    expect_near(actual.mass, expected.mass, 1e-9, few * std::max(1.0F, power), name + " mass");
    const Result no_mass = scene.run(*table, q_begin, q_end, power, false);
    expect_near(scene.tile(no_mass, q_begin, q_end), scene.tile(actual, q_begin, q_end),
                2e-6 * slack(*table), 0, name + " without mass");
  }
}

std::string describe(const Shape& s, const Layout& l) {
  return "D " + std::to_string(s.head_dim) + " g " + std::to_string(s.group_size) + " window " +
         std::to_string(s.window) + " bits " + std::to_string(s.bits) + " full " +
         std::to_string(l.full_lanes.size()) + " quantized " +
         std::to_string(l.quantized_lanes.size()) + " sinks " + std::to_string(l.sinks) + " row0 " +
         std::to_string(l.row0);
}

TEST(PrefillTile, HasAtLeastOneVectorTableAndEachDiffers) {
  if (simd_tables().empty()) GTEST_SKIP() << "this CPU has none of the instruction sets";
  const std::size_t vnni = find_kernels("avx512_vnni") != nullptr ? 1 : 0;
  EXPECT_EQ(simd_tables().size(), available_isas().size() - 1 - vnni);
}

TEST(PrefillTile, MatchesTheReferenceForEveryShapeAndPrefix) {
  const std::vector<Shape> shapes = {
      {64, 7, 2, 8, 2},  {128, 6, 1, 8, 4}, {8, 1, 1, 4, 2, RopePairing::Interleaved},
      {16, 2, 3, 8, 2},  {80, 4, 1, 8, 4},  {96, 3, 2, 16, 2, RopePairing::Interleaved},
      {256, 8, 1, 8, 2}, {20, 3, 1, 12, 2}, {12, 1, 2, 32, 4}};
  const std::vector<Layout> layouts = {{{}, {}, 0, 0, 6},      {{}, {}, 5, 0, 6},
                                       {{}, {}, 40, 3, 6},     {{}, {}, 5, 150, 6},
                                       {{16, 3}, {}, 0, 0, 4}, {{}, {16, 5}, 5, 0, 4},
                                       {{2}, {1}, 5, 21, 4},   {{16}, {9, 2}, 0, 3, 4}};
  int n = 0;
  for (const Shape& shape : shapes) {
    for (const Layout& layout : layouts) {
      Scene scene(shape, layout, ++n);
      const float power = n % 4 == 0 ? 2.0F : n % 7 == 0 ? 0.5F : 1.0F;
      compare_with_reference(scene, 0, layout.n_tokens, power, describe(shape, layout));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PrefillTile, MatchesTheReferenceForEveryCodeAndGridFormat) {
  const Layout layout = {{}, {16, 5}, 5, 3, 4};
  int n = 0;
  for (const int bits : {2, 3, 4, 8}) {
    for (const auto& [key, value] : {std::pair{GridFormat::F16, GridFormat::F16},
                                     {GridFormat::U8, GridFormat::U8},
                                     {GridFormat::U4, GridFormat::U8}}) {
      for (int i = 0; i < 2; ++i) {
        constexpr int kDims[] = {64, 80, 96, 128, 256};
        const int dim = kDims[++n % 5];
        Shape shape = {dim, n % 8 + 1, 1 + n % 2, 8, bits};
        if (n % 2 == 0) shape.pairing = RopePairing::Interleaved;
        shape.key_grid = key;
        shape.value_grid = value;
        compare_with_reference(Scene(shape, layout, n), 0, layout.n_tokens, 1.0F,
                               describe(shape, layout));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(PrefillTile, MatchesTheReferenceForAPrefixOfSeveralFormats) {
  constexpr GridFormat kU8 = GridFormat::U8;
  for (const int window : {4, 8}) {  // of 4: two groups a panel
    const Shape shape = {32, 3, 2, window, 2};
    Layout layout = {{3}, {16, 16, 5, 16, 2}, 5, 3, 4};
    for (const int bits : {8, 4, window == 8 ? 3 : 4, 2, 2}) {
      Shape part = shape;
      part.bits = bits;
      part.key_grid = bits > 3 ? kU8 : GridFormat::U4;
      part.value_grid = kU8;
      layout.quantized_shapes.push_back(part);
    }
    compare_with_reference(Scene(shape, layout, 9), 0, layout.n_tokens, 1.0F,
                           describe(shape, layout));
    if (HasFatalFailure()) return;
    // As many groups of one format are something else.
    Layout plain = layout;
    plain.quantized_shapes.clear();
    EXPECT_NE(Scene(shape, layout, 9).run(reference_kernels(), 0, 4).mass,
              Scene(shape, plain, 9).run(reference_kernels(), 0, 4).mass);
  }
}

TEST(PrefillTile, MatchesTheReferenceForEveryWindowLength) {
  for (int window = 1; window <= 32; ++window) {
    const Shape shape = {16, 2, 1, window, 4};
    Layout layout = {{16, 16, 2}, {}, 3, 16 * window + 5, 3};
    if (window % 4 == 0) layout.quantized_lanes = {16, 7};
    compare_with_reference(Scene(shape, layout, window), 0, layout.n_tokens, 1.0F,
                           describe(shape, layout));
    if (HasFatalFailure()) return;
  }
}

TEST(PrefillTile, MatchesTheReferenceForFirstMiddleAndLastTile) {
  const Shape shape = {64, 7, 1, 8, 2};
  const Layout layout = {{4}, {3}, 5, 0, 77};
  const Scene scene(shape, layout);
  for (const auto& [begin, end] : {std::pair{0, 32}, {32, 64}, {64, 77}, {76, 77}, {0, 3}}) {
    compare_with_reference(scene, begin, end, 1.0F, describe(shape, layout));
    if (HasFatalFailure()) return;
  }
}

TEST(PrefillTile, IgnoresRowsBeyondTheVisibleOnes) {
  Scene scene({64, 2, 1, 8, 2}, {{3}, {2}, 5, 9, 20});
  Scene with_nan = scene;
  with_nan.add_nan_rows(150);
  for (const std::string& isa : available_isas()) {
    const Result expected = scene.run(*find_kernels(isa), 0, 20);
    const Result actual = with_nan.run(*find_kernels(isa), 0, 20);
    EXPECT_EQ(scene.tile(actual, 0, 20), scene.tile(expected, 0, 20)) << isa;
    EXPECT_EQ(actual.mass, expected.mass) << isa;
  }
}

TEST(PrefillTile, GivesTheSameBitsOnRepeatAndForAnyTiling) {
  const int n = 61;
  const Scene scene({80, 3, 1, 8, 2}, {{16, 2}, {5}, 5, 100, n});
  for (const KernelTable* table : compared_tables()) {
    std::vector<float> whole, mass(3 * scene.n_windows(n));
    for (const int step : {32, 32, 7, 1}) {
      std::vector<float> out;
      std::vector<double> sum(mass.size());
      for (int begin = 0; begin < n; begin += step) {
        const int end = std::min(n, begin + step);
        const Result r = scene.run(*table, begin, end);
        const auto part = scene.tile(r, begin, end);
        out.insert(out.end(), part.begin(), part.end());
        const int windows = scene.n_windows(end);
        for (int h = 0; h < 3; ++h) {
          for (int w = 0; w < windows; ++w) {
            sum[h * scene.n_windows(n) + w] += r.mass[h * windows + w];
          }
        }
      }
      if (whole.empty()) {
        whole = out;
        std::copy(sum.begin(), sum.end(), mass.begin());
      }
      EXPECT_EQ(out, whole) << table->name << ", tiles of " << step;
      expect_near({sum.begin(), sum.end()}, mass, 1e-7, 1e-5, table->name);
    }
  }
}

// Raising scores: every panel moves the maximum, by more and by less than the lazy range.
TEST(PrefillTile, StaysExactWhenScoresGrowByHundreds) {
  for (const float step : {0.01F, 0.055F, 0.2F, 1.0F}) {
    for (const float power : {1.0F, 8.0F, 20.0F}) {
      Scene scene({8, 1, 1, 8, 2}, {{}, {}, 5, 400, 8});
      for (int r = 0; r < scene.n_rows_; ++r) {
        for (int c = 0; c < 8; ++c) {
          scene.k_rows_[r * 8 + c] = fp32_to_fp16(c == 0 ? step * float(r) : 0.0F);
        }
      }
      for (float& x : scene.q_) x = 2.0F;
      const Result expected = scene.run(reference_kernels(), 0, 8, power);
      for (const KernelTable* table : compared_tables()) {
        const Result actual = scene.run(*table, 0, 8, power);
        // Scores up to 300 have an fp32 error of about 1e-5, probabilities the same relatively.
        expect_near(actual.out, expected.out, 1e-4 * slack(*table), 0, table->name);
        expect_near(actual.mass, expected.mass, 1e-9, 2e-4 * power * slack(*table), table->name);
      }
    }
  }
}

// Softmax over explicit keys, in double: out [D] and the probability of each key.
void plain_attention(const float* q, double scale, const std::vector<std::vector<double>>& keys,
                     const std::vector<std::vector<double>>& values, std::vector<double>* out,
                     std::vector<double>* probability) {
  probability->clear();
  double sum = 0.0;
  for (const auto& key : keys) {
    double s = 0.0;
    for (std::size_t c = 0; c < key.size(); ++c) s += q[c] * key[c];
    probability->push_back(std::exp(s * scale));
    sum += probability->back();
  }
  out->assign(values[0].size(), 0.0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    (*probability)[i] /= sum;
    for (std::size_t c = 0; c < out->size(); ++c) (*out)[c] += (*probability)[i] * values[i][c];
  }
}

// Two Full and two Quantized windows made by the codec, sinks and rows, against plain attention
// over the keys that dequantisation gives: pins the group layouts, RoPE and the places of the
// masses.
TEST(PrefillTile, AgreesWithPlainAttentionOverCodecWindows) {
  for (const RopePairing pairing : {RopePairing::Neox, RopePairing::Interleaved}) {
    Shape shape = {16, 2, 2, 8, 2, pairing};
    if (pairing == RopePairing::Interleaved) {
      shape.bits = 3;
      shape.key_grid = GridFormat::U4;
      shape.value_grid = GridFormat::U8;
    }
    const int dim = shape.head_dim;
    const int sinks = 3;
    const int n_tokens = 9;
    Scene scene(shape, {{}, {}, sinks, 6, n_tokens});
    const Geometry& g = scene.geometry();
    const std::size_t window_floats = std::size_t(g.n_kv_heads) * g.window * dim;
    std::vector<std::vector<double>> keys, values;
    std::vector<int> window_of;
    const auto add_key = [&](int window, auto* k, auto* v) {
      const auto wide = [](auto x) {
        if constexpr (std::is_same_v<decltype(x), fp16_t>) return double(fp16_to_fp32(x));
        return double(x);
      };
      auto& key = keys.emplace_back();
      auto& value = values.emplace_back();
      for (int c = 0; c < dim; ++c) key.push_back(wide(k[c]));
      for (int c = 0; c < dim; ++c) value.push_back(wide(v[c]));
      window_of.push_back(window);
    };
    const std::size_t last_head = window_floats - std::size_t(g.window) * dim;

    std::vector<std::uint8_t> full(2 * g.full_window_bytes());
    for (int lane = 0; lane < 2; ++lane) {
      const auto k = scene.normals<fp16_t>(window_floats, 1.0F);
      const auto v = scene.normals<fp16_t>(window_floats, 1.0F);
      full_group_store(g, full.data(), 2, lane, k.data(), v.data());
      for (int j = 0; j < g.window; ++j) {
        add_key(lane, &k[last_head + j * dim], &v[last_head + j * dim]);
      }
    }
    scene.add_full_group(std::move(full), 2);

    const std::vector<int> positions = {85, 1237};
    std::vector<std::uint8_t> quantized(2 * g.quantized_window_bytes());
    for (int lane = 0; lane < 2; ++lane) {
      auto k = scene.normals<float>(window_floats, 1.0F);
      auto v = scene.normals<float>(window_floats, 1.0F);
      std::vector<std::uint8_t> block(g.quantized_window_bytes());
      std::vector<float> scratch(quantize_scratch_floats(g));
      const QuantRange range = {scene.range_keys_.data(), scene.range_values_.data()};
      quantize_window_pre_rope(g, k.data(), v.data(), block.data(), scratch.data(), range);
      quant_group_store(g, quantized.data(), 2, lane, block.data());
      dequantize_window(g, block.data(), k.data(), v.data(), range);
      for (int j = 0; j < g.window; ++j) {
        std::vector<float> cos(dim / 2), sin(dim / 2);
        rope_angles(scene.rope(), positions[lane] + j, cos.data(), sin.data());
        rope_rotate(scene.rope(), cos.data(), sin.data(), 1.0F, &k[last_head + j * dim]);
        add_key(kLanes + lane, &k[last_head + j * dim], &v[last_head + j * dim]);
      }
    }
    scene.add_quantized_group(std::move(quantized), positions);

    const int first_row = int(keys.size());
    for (int r = 0; r < scene.n_rows_; ++r) {
      const int window = r < sinks ? -1 : 2 * kLanes + (r - sinks) / g.window;
      add_key(window, &scene.k_rows_[r * dim], &scene.v_rows_[r * dim]);
    }

    std::vector<float> out;
    std::vector<double> mass(2 * scene.n_windows(n_tokens));
    double sink_share = 0.0;
    for (int t = 0; t < n_tokens; ++t) {
      const int seen = first_row + scene.layout_.row0 + t + 1;
      const std::vector<std::vector<double>> k(keys.begin(), keys.begin() + seen);
      for (int h = 0; h < 2; ++h) {
        std::vector<double> o, probability;
        const float* q = &scene.q_[(t * g.n_heads + 2 + h) * dim];  // of the second KV head
        plain_attention(q, 1.0 / std::sqrt(double(dim)), k, values, &o, &probability);
        out.insert(out.end(), o.begin(), o.end());
        for (int i = 0; i < seen; ++i) {
          double& sum =
              window_of[i] < 0 ? sink_share : mass[h * scene.n_windows(n_tokens) + window_of[i]];
          sum += probability[i];
        }
      }
    }
    for (const std::string& isa : available_isas()) {
      const Result r = scene.run(*find_kernels(isa), 0, n_tokens);
      expect_near(scene.tile(r, 0, n_tokens), out, 1e-5, 0, isa);
      expect_near(r.mass, {mass.begin(), mass.end()}, 1e-7, 1e-5, isa + " mass");
      double total = 0.0;
      for (const float m : r.mass) total += m;
      EXPECT_NEAR(total, 2.0 * n_tokens - sink_share, 1e-4) << isa;
    }
  }
}

}  // namespace
}  // namespace qevict
