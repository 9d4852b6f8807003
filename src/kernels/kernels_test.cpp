// Every table against the scalar one: shapes x lanes x bits x pairing x query heads a KV head.
#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <set>

#include "kernels/attend_scene.h"

namespace qevict {
namespace {

// fp32 sums in another order than the reference's; measured below 1e-5 where scores reach 30.
constexpr double kTolerance = 5e-5;
constexpr double kMassTolerance = 1e-4;

// Values in whole numbers (attend_vnni.h): weights are rounded to 16 bits; measured below 7e-5.
constexpr double kIntegerTolerance = 1e-4;

bool is_integer(const KernelTable& table) {
  const KernelTable* vnni = find_kernels("avx512_vnni");
  return vnni != nullptr && table.attend_quantized == vnni->attend_quantized;
}

void expect_quantized(const KernelTable& table, const Attended& got, const Attended& want,
                      const std::string& what) {
  const bool integer = is_integer(table);
  EXPECT_LE(relative_l2(got.out, want.out), integer ? kIntegerTolerance : kTolerance) << what;
  ASSERT_EQ(got.mass.size(), want.mass.size());
  for (std::size_t i = 0; i < got.mass.size(); ++i) {
    ASSERT_NEAR(got.mass[i], want.mass[i], kMassTolerance * want.mass[i] + 1e-12)
        << what << " " << i;
  }
}

void expect_close(const Attended& got, const Attended& want, const std::string& what) {
  EXPECT_LE(relative_l2(got.out, want.out), kTolerance) << what;
  ASSERT_EQ(got.mass.size(), want.mass.size());
  for (std::size_t i = 0; i < got.mass.size(); ++i) {
    ASSERT_NEAR(got.mass[i], want.mass[i], kMassTolerance * want.mass[i] + 1e-12)
        << what << " " << i;
  }
}

std::vector<AttendShape> shapes() {
  std::vector<AttendShape> all;
  for (const int dim : {8, 16, 64, 80, 96, 128, 256}) {
    all.push_back({.head_dim = dim, .group_size = dim == 64 ? 7 : dim == 8 ? 2 : 3});
  }
  for (const int g : {1, 2, 4, 8, 12, 20}) all.push_back({.head_dim = 64, .group_size = g});
  all.push_back({.head_dim = 12, .group_size = 2});
  all.push_back({.head_dim = 128, .group_size = 4});
  return all;
}

TEST(Attend, FullMatchesTheReferenceForEveryShapeAndLaneCount) {
  for (AttendShape shape : shapes()) {
    for (const int window : {1, 3, 8, 32}) {
      if (window != 8 && shape.head_dim > 64) continue;
      shape.window = window;
      for (const std::vector<int>& lanes :
           {std::vector<int>{16, 16, 5}, std::vector<int>{1}, std::vector<int>{15, 2}}) {
        const AttendScene scene(shape, lanes);
        const Attended want = scene.full(reference_kernels());
        for (const KernelTable* table : simd_kernels()) {
          expect_close(scene.full(*table), want, std::string(table->name) + " " + shape.name());
        }
      }
    }
  }
}

TEST(Attend, QuantizedMatchesTheReferenceForEveryShapeAndLaneCount) {
  for (AttendShape shape : shapes()) {
    for (const int bits : {2, 4}) {
      for (const RopePairing pairing : {RopePairing::Neox, RopePairing::Interleaved}) {
        for (const int window : {4, 8, 32}) {
          if (window != 8 && shape.head_dim > 64) continue;
          shape.window = window;
          shape.bits = bits;
          shape.pairing = pairing;
          for (const std::vector<int>& lanes : {std::vector<int>{16, 7}, std::vector<int>{1}}) {
            const AttendScene scene(shape, lanes);
            const Attended want = scene.quantized(reference_kernels());
            for (const KernelTable* table : simd_kernels()) {
              expect_quantized(*table, scene.quantized(*table), want,
                               std::string(table->name) + " " + shape.name());
            }
          }
        }
      }
    }
  }
}

struct Grids {
  GridFormat key, value;
};
constexpr Grids kGrids[] = {{GridFormat::F16, GridFormat::F16},
                            {GridFormat::U8, GridFormat::U8},
                            {GridFormat::U4, GridFormat::U8},
                            {GridFormat::U4, GridFormat::F16}};

void expect_quantized_close(const AttendShape& shape, const std::vector<int>& lanes) {
  const AttendScene scene(shape, lanes);
  const Attended want = scene.quantized(reference_kernels());
  for (const KernelTable* table : simd_kernels()) {
    expect_quantized(*table, scene.quantized(*table), want,
                     std::string(table->name) + " " + shape.name());
  }
}

// Bits and grids in all combinations; what the shapes above leave out.
TEST(Attend, EveryCodeAndGridFormatMatchesTheReference) {
  int n = 0;
  for (const int bits : {2, 3, 4, 8}) {
    for (const Grids& grids : kGrids) {
      AttendShape shape{.bits = bits, .key_grid = grids.key, .value_grid = grids.value};
      for (int i = 0; i < 3; ++i) {
        constexpr int kDims[] = {64, 80, 96, 128, 256};
        shape.head_dim = kDims[++n % 5];
        shape.group_size = n % 8 + 1;
        shape.window = shape.head_dim == 64 && n % 2 == 0 ? 16 : 8;
        shape.pairing = n % 3 == 0 ? RopePairing::Interleaved : RopePairing::Neox;
        expect_quantized_close(shape, n % 5 == 0 ? std::vector<int>{1} : std::vector<int>{16, 7});
      }
    }
  }
}

// Models with a bias in the key projection have channels that are far from 0 in every token.
TEST(Attend, BiasedKeysAndLargeQueriesMatchTheReference) {
  for (const float bias : {0.0F, 10.0F, 30.0F, 300.0F}) {
    for (const float queries : {0.01F, 1.0F, 4.0F}) {
      for (const int dim : {64, 128}) {
        AttendScene scene({.head_dim = dim, .group_size = 3, .key_bias = bias}, {16, 16, 16, 5});
        scene.scale_queries(queries);
        const Attended want = scene.quantized(reference_kernels());
        for (const KernelTable* table : simd_kernels()) {
          const Attended got = scene.quantized(*table);
          // fp32 scores: their rounding error grows with the terms of the sum.
          const double fp32 = 5e-5 + 1e-6 * double(bias) * double(queries);
          EXPECT_LE(relative_l2(got.out, want.out), is_integer(*table) ? kIntegerTolerance : fp32)
              << table->name << " bias " << bias << " queries " << queries << " D" << dim;
        }
      }
    }
  }
}

TEST(Attend, EveryGroupSizeMatchesTheReferenceWithThreeBits) {
  for (int size = 1; size <= 9; ++size) {
    expect_quantized_close({.head_dim = 64,
                            .group_size = size,
                            .bits = 3,
                            .key_grid = GridFormat::U4,
                            .value_grid = GridFormat::U8},
                           {16, 3});
  }
}

// Groups whose rows of 16 lanes would run over the end of the allocation.
TEST(Attend, EveryLaneCountWorksWithEveryFormat) {
  for (int lanes = 1; lanes <= kLanes; ++lanes) {
    for (const int bits : {2, 3, 4, 8}) {
      for (const Grids& grids : kGrids) {
        expect_quantized_close({.head_dim = 8,
                                .group_size = 1,
                                .window = bits == 3   ? 8
                                          : bits == 8 ? 2
                                                      : 4,
                                .bits = bits,
                                .key_grid = grids.key,
                                .value_grid = grids.value},
                               {lanes});
      }
    }
  }
}

TEST(Attend, EveryLaneCountWorks) {
  for (int lanes = 1; lanes <= kLanes; ++lanes) {
    for (const int dim : {8, 64}) {
      const AttendScene scene({.head_dim = dim, .group_size = 2, .window = 4}, {lanes});
      const Attended full = scene.full(reference_kernels());
      const Attended quantized = scene.quantized(reference_kernels());
      for (const KernelTable* table : simd_kernels()) {
        expect_close(scene.full(*table), full, std::string(table->name) + " full");
        expect_quantized(*table, scene.quantized(*table), quantized,
                         std::string(table->name) + " quantized");
      }
    }
  }
}

TEST(Attend, RecentMatchesTheReferenceAndIgnoresUnusedRows) {
  for (const AttendShape& shape : shapes()) {
    for (const int n_tokens : {1, 15, 16, 17, 37, 300}) {
      if (n_tokens == 300 && shape.head_dim > 64) continue;
      const AttendScene scene(shape, {1}, n_tokens);
      const Attended want = scene.recent(reference_kernels());
      for (const float x : want.out) ASSERT_TRUE(std::isfinite(x));
      for (const KernelTable* table : simd_kernels()) {
        expect_close(scene.recent(*table), want, std::string(table->name) + " " + shape.name());
      }
    }
  }
}

TEST(Attend, NoRecentTokensLeaveTheStateAsItWas) {
  const AttendScene scene({}, {1}, 0);
  for (const std::string& isa : available_isas()) {
    const Attended got = scene.recent(*find_kernels(isa));
    for (const float x : got.l) EXPECT_EQ(x, 0.0F);
    for (const float x : got.mass) EXPECT_EQ(x, 0.0F);
  }
}

TEST(Attend, UnusedLanesHaveNoMass) {
  const AttendScene scene({}, {16, 3});
  for (const std::string& isa : available_isas()) {
    for (const Attended& got :
         {scene.full(*find_kernels(isa)), scene.quantized(*find_kernels(isa))}) {
      for (int h = 0; h < 7; ++h) {
        for (int n = 3; n < kLanes; ++n) EXPECT_EQ(got.mass[(7 + h) * kLanes + n], 0.0F);
      }
    }
  }
}

TEST(Attend, MassesSumToOneAndToThePower) {
  const AttendScene scene({}, {16, 9});
  for (const std::string& isa : available_isas()) {
    for (const Attended& got :
         {scene.full(*find_kernels(isa)), scene.quantized(*find_kernels(isa))}) {
      for (int h = 0; h < 7; ++h) {
        double sum = 0.0;
        for (int i = 0; i < 2; ++i) {
          for (int n = 0; n < kLanes; ++n) sum += got.mass[(i * 7 + h) * kLanes + n];
        }
        EXPECT_NEAR(sum, 1.0, 1e-5) << isa;
      }
    }
  }
  const AttendScene scene2({}, {16, 9}, 37);
  for (const float power : {2.0F, 0.5F}) {
    const Attended full = scene2.full(reference_kernels(), power);
    const Attended quantized = scene2.quantized(reference_kernels(), power);
    const Attended recent = scene2.recent(reference_kernels(), power);
    for (const KernelTable* table : simd_kernels()) {
      expect_close(scene2.full(*table, power), full, "full");
      expect_quantized(*table, scene2.quantized(*table, power), quantized, "quantized");
      expect_close(scene2.recent(*table, power), recent, "recent");
    }
  }
}

// One call over all groups, one call a group, and segments merged afterwards.
TEST(Attend, ContinuedStateEqualsASinglePass) {
  const AttendScene scene({}, {16, 16, 16, 5}, 50);
  for (const std::string& isa : available_isas()) {
    const KernelTable& table = *find_kernels(isa);
    if (isa == "reference") continue;  // it rounds its double sums at the end of each call
    EXPECT_EQ(scene.full(table).out, scene.full_in_steps(table).out) << isa;
    EXPECT_EQ(scene.quantized(table).out, scene.quantized_in_steps(table).out) << isa;
    EXPECT_LE(relative_l2(scene.all_tiers_continued(table).out, scene.all_tiers_merged(table).out),
              1e-5)
        << isa;
  }
}

TEST(Attend, GivesTheSameBitsOnRepeat) {
  const AttendScene scene({.head_dim = 80, .group_size = 12}, {16, 16, 3}, 77);
  for (const std::string& isa : available_isas()) {
    const KernelTable& table = *find_kernels(isa);
    EXPECT_EQ(scene.full(table), scene.full(table)) << isa;
    EXPECT_EQ(scene.quantized(table), scene.quantized(table)) << isa;
    EXPECT_EQ(scene.recent(table), scene.recent(table)) << isa;
  }
}

TEST(Attend, WithoutMassesTheOutputIsTheSame) {
  const AttendScene scene({}, {16, 4}, 20);
  for (const std::string& isa : available_isas()) {
    const KernelTable& table = *find_kernels(isa);
    EXPECT_EQ(scene.full(table).out, scene.full(table, 0.0F).out) << isa;
    EXPECT_EQ(scene.quantized(table).out, scene.quantized(table, 0.0F).out) << isa;
    EXPECT_EQ(scene.recent(table).out, scene.recent(table, 0.0F).out) << isa;
  }
}

TEST(Attend, SurvivesScoresThatGrowByHundreds) {
  AttendScene scene({.head_dim = 64, .group_size = 7}, {16, 16, 16, 2});
  scene.scale_queries(100.0F);
  const Attended want = scene.full(reference_kernels());
  for (const KernelTable* table : simd_kernels()) {
    const Attended got = scene.full(*table);
    for (const float x : got.out) ASSERT_TRUE(std::isfinite(x));
    // fp32 scores of some hundreds have an absolute error of 1e-4, and so have the probabilities.
    EXPECT_LE(relative_l2(got.out, want.out), 2e-3) << table->name;
  }
}

TEST(Phases, EqualTheAnglesOfTheWindowsBase) {
  const RopeSpec rope = RopeSpec::plain(RopePairing::Neox, 24, 1e6);
  const WindowPhases phases(rope, 5, 8, 20000);
  const std::int32_t windows[kLanes] = {0, 17, 3, 12499, 64, 63, 65, 8, 9, 10, 19999, 1, 2};
  std::vector<float> cos(12);
  std::vector<float> sin(12);
  for (const std::string& isa : available_isas()) {
    std::vector<float> out(12 * 2 * kLanes, -1.0F);
    find_kernels(isa)->window_phases(phases, windows, 13, out.data());
    for (int n = 0; n < kLanes; ++n) {
      rope_angles(rope, n < 13 ? 5 + 8LL * windows[n] : 0, cos.data(), sin.data());
      for (int c = 0; c < 12; ++c) {
        EXPECT_NEAR(out[c * 2 * kLanes + n], cos[c], 3e-7F) << isa;
        EXPECT_NEAR(out[(c * 2 + 1) * kLanes + n], sin[c], 3e-7F) << isa;
      }
    }
  }
}

TEST(Tables, EachIsaHasCodeOfItsOwn) {
  std::set<void (*)(const AttendQuantizedParams&) noexcept> quantized;
  std::set<void (*)(const AttendFullParams&) noexcept> full;
  std::set<void (*)(const PrefillParams&) noexcept> prefill;
  for (const std::string& isa : available_isas()) {
    const KernelTable* table = find_kernels(isa);
    ASSERT_NE(table, nullptr);
    EXPECT_EQ(table->name, isa);
    // The matrix tiles serve prompts only, whole numbers quantised tiers only.
    EXPECT_EQ(full.insert(table->attend_full).second, isa != "amx" && isa != "avx512_vnni") << isa;
    EXPECT_EQ(quantized.insert(table->attend_quantized).second, isa != "amx") << isa;
    if (isa == "avx512_vnni") continue;
    EXPECT_TRUE(prefill.insert(table->prefill_tile).second) << isa;
  }
  EXPECT_EQ(find_kernels("mmx"), nullptr);
#if defined(__x86_64__) && !defined(__AVX2__)
  EXPECT_EQ(find_kernels("sse4") != nullptr, __builtin_cpu_supports("sse4.2") != 0);
  EXPECT_EQ(find_kernels("avx2") != nullptr, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(find_kernels("avx512") != nullptr, __builtin_cpu_supports("avx512bw") != 0);
  EXPECT_EQ(find_kernels("avx512_vnni") != nullptr,
            __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0);
#elif defined(__aarch64__)
  EXPECT_EQ(available_isas(), (std::vector<std::string>{"reference", "neon"}));
#endif
}

// In fresh processes, because the choice is made once; nothing may ask for a table before setenv().
TEST(TablesDeathTest, EnvironmentForcesTheIsa) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* isa :
       {"reference", "sse4", "avx2", "avx512", "avx512_vnni", "neon", "avx9000"}) {
    EXPECT_EXIT(
        {
          setenv("QEVICT_ISA", isa, 1);
          const bool known = find_kernels(isa) != nullptr;
          const std::string expected = known ? isa : available_isas().back();
          const bool reported = isa_error().find(isa) != std::string::npos;
          std::exit(active_kernels().name == expected && known != reported ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << isa;
  }
}

}  // namespace
}  // namespace qevict
