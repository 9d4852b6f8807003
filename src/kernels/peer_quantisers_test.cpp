// The published quantisers' functions by hand-computed cases; golden vectors check the rest.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/kivi.h"
#include "kernels/kvquant.h"
#include "kernels/zipcache.h"

namespace qevict {
namespace {

TEST(PackedCodes, AreALittleEndianStreamOfAnyWidth) {
  const std::vector<std::uint8_t> codes = {1, 2, 3, 0, 2, 1, 0, 3, 3, 1};
  std::vector<std::uint8_t> packed(packed_bytes(codes.size(), 2));
  pack_codes(codes.data(), 10, 2, packed.data());
  EXPECT_EQ(packed, (std::vector<std::uint8_t>{0b00111001, 0b11000110, 0b0111}));
  for (const int bits : {2, 3, 4, 8}) {
    std::vector<std::uint8_t> wide(33), back(33);
    for (int i = 0; i < 33; ++i) wide[i] = static_cast<std::uint8_t>((i * 7 + 3) % (1 << bits));
    std::vector<std::uint8_t> stream(packed_bytes(33, bits));
    pack_codes(wide.data(), 33, bits, stream.data());
    for (int first = 0; first < 33; ++first) {
      unpack_codes(stream.data(), first, 33 - first, bits, back.data());
      EXPECT_TRUE(std::equal(wide.begin() + first, wide.end(), back.begin()))
          << bits << " bits from " << first;
    }
  }
}

TEST(AffineGrid, OfAConstantOrHugeGroupGivesFiniteValues) {
  for (const Rounding rounding : {Rounding::F32, Rounding::F16}) {
    const AffineGrid constant = affine_grid(2.5F, 2.5F, 2, rounding);
    EXPECT_EQ(affine_code(constant, 2.5F, 2, rounding), 0);
    EXPECT_EQ(affine_value(constant, 3, rounding), 2.5F);
    const AffineGrid huge = affine_grid(-65504.0F, 65504.0F, 4, rounding);
    EXPECT_EQ(affine_code(huge, 65504.0F, 4, rounding), 15);
    EXPECT_TRUE(std::isfinite(affine_value(huge, 15, rounding)));
  }
}

TEST(KiviSplit, KeysGoInStepsAndValuesOneByOne) {
  const auto split = [](int n) {
    const KiviSplit s = kivi_split(n, 32);
    return std::pair<std::int64_t, std::int64_t>(s.keys, s.values);
  };
  EXPECT_EQ(split(31), (std::pair<std::int64_t, std::int64_t>(0, 0)));
  EXPECT_EQ(split(32), (std::pair<std::int64_t, std::int64_t>(32, 0)));
  EXPECT_EQ(split(33), (std::pair<std::int64_t, std::int64_t>(32, 1)));
  EXPECT_EQ(split(95), (std::pair<std::int64_t, std::int64_t>(64, 63)));
}

TEST(ZipcacheProbe, SeesNoLaterKeyAndAddsUpToOne) {
  constexpr int kDim = 4;
  std::vector<fp16_t> k(std::size_t{3} * kDim);
  k[kDim] = fp32_to_fp16(1.0F);
  k[2 * kDim] = fp32_to_fp16(9.0F);
  const std::vector<float> q = {std::log(3.0F), 0, 0, 0, 5, 0, 0, 0};
  const std::vector<std::int32_t> visible = {2, 1};
  std::vector<float> buffer(zipcache_probe_floats(3, kDim) + 16);
  float* scratch = buffer.data();
  while (reinterpret_cast<std::uintptr_t>(scratch) % 64 != 0) ++scratch;
  for (const std::string& isa : available_isas()) {
    std::vector<double> sums(3);
    zipcache_add_probes(*find_kernels(isa)->dense,
                        {q.data(), kDim, visible.data(), 2, 1.0F, k.data(), 3, kDim, scratch},
                        sums.data());
    EXPECT_NEAR(sums[0], 0.25 + 1.0, 1e-6) << isa;
    EXPECT_NEAR(sums[1], 0.75, 1e-6) << isa;
    EXPECT_EQ(sums[2], 0.0) << isa;
  }
}

TEST(ZipcacheSplit, TiesGoToTheLowerIndex) {
  const std::vector<float> saliency = {2, 1, 1, 3, 1};
  std::vector<std::int32_t> scratch(5), low(2), high(3);
  zipcache_split(saliency.data(), 5, 2, scratch.data(), low.data(), high.data());
  EXPECT_EQ(low, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(high, (std::vector<std::int32_t>{0, 3, 4}));
}

TEST(KvquantValue, TheTwoExtremesOfATokenAreOutliers) {
  std::vector<float> x = {0.5F, 8.0F, -0.25F, 1.0F, -9.0F, 0.0F};
  std::vector<float> scratch(6);
  std::uint8_t outlier[6];
  const NuqLimits limits = kvquant_value_limits(x.data(), 6, 0.99, scratch.data(), outlier);
  EXPECT_TRUE(outlier[1] && outlier[4]);
  EXPECT_FALSE(outlier[0] || outlier[2] || outlier[3] || outlier[5]);
  EXPECT_EQ(limits.lower, -0.25F);
  EXPECT_EQ(limits.upper, 1.0F);
}

TEST(KvquantCodebook, FindsTheClustersAndSpreadsWhenThereAreNone) {
  constexpr int kBins = 1000;
  std::vector<std::int64_t> counts(kBins);
  for (const float x : {-0.75F, -0.25F, 0.1F, 0.9F}) counts[kvquant_bin(x, kBins)] += 1;
  counts[kvquant_bin(0.1F, kBins)] += 100;
  float lut[4];
  kvquant_codebook(counts.data(), kBins, 4, lut);
  EXPECT_TRUE(std::is_sorted(lut, lut + 4));
  std::vector<std::int64_t> nothing(kBins);
  kvquant_codebook(nothing.data(), kBins, 4, lut);
  EXPECT_FLOAT_EQ(lut[0], -1.0F);
  EXPECT_FLOAT_EQ(lut[3], 1.0F);
  EXPECT_EQ(kvquant_code(lut, 4, 0.4F), 2);
}

}  // namespace
}  // namespace qevict
