#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace qevict {
namespace {

TEST(Rope, UnrotationInvertsRotationAtFarPositions) {
  for (const RopePairing pairing : {RopePairing::Neox, RopePairing::Interleaved}) {
    const RopeSpec rope = RopeSpec::plain(pairing, 64, 1e4);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(64);
    for (float& v : x) v = normal(random);
    for (const long long position : {0LL, 1LL, 511LL, 30000LL, 100000LL}) {
      std::vector<float> cos(32);
      std::vector<float> sin(32);
      rope_angles(rope, position, cos.data(), sin.data());
      std::vector<float> y = x;
      rope_rotate(rope, cos.data(), sin.data(), 1.0F, y.data());
      if (position > 0) EXPECT_GT(std::abs(y[0] - x[0]), 1e-3F);
      rope_rotate(rope, cos.data(), sin.data(), -1.0F, y.data());
      for (int i = 0; i < 64; ++i) EXPECT_NEAR(y[i], x[i], 1e-6F) << position;
    }
  }
}

TEST(Rope, PairsChannelsAsThePairingSays) {
  const float cos[2] = {0.0F, 1.0F};
  const float sin[2] = {1.0F, 0.0F};  // the first pair by 90 degrees, the second not at all
  float neox[4] = {1, 2, 3, 4};
  rope_rotate(RopeSpec::plain(RopePairing::Neox, 4, 1e4), cos, sin, 1.0F, neox);
  EXPECT_EQ(neox[0], -3.0F);
  EXPECT_EQ(neox[2], 1.0F);
  EXPECT_EQ(neox[1], 2.0F);
  EXPECT_EQ(neox[3], 4.0F);
  float interleaved[4] = {1, 2, 3, 4};
  rope_rotate(RopeSpec::plain(RopePairing::Interleaved, 4, 1e4), cos, sin, 1.0F, interleaved);
  EXPECT_EQ(interleaved[0], -2.0F);
  EXPECT_EQ(interleaved[1], 1.0F);
  EXPECT_EQ(interleaved[2], 3.0F);
}

TEST(Rope, WindowPhasesAddUpToTheWindowsAngle) {
  const RopeSpec rope = RopeSpec::plain(RopePairing::Neox, 16, 1e4);
  const WindowPhases phases(rope, 5, 8, 15000);
  std::vector<float> cos(8);
  std::vector<float> sin(8);
  for (const int w : {0, 1, 63, 64, 1000, 14999}) {
    rope_angles(rope, 5 + 8LL * w, cos.data(), sin.data());
    for (int c = 0; c < 8; ++c) {
      const float a = phases.coarse_cos(w)[c] * phases.fine_cos(w)[c] -
                      phases.coarse_sin(w)[c] * phases.fine_sin(w)[c];
      const float b = phases.coarse_sin(w)[c] * phases.fine_cos(w)[c] +
                      phases.coarse_cos(w)[c] * phases.fine_sin(w)[c];
      EXPECT_NEAR(a, cos[c], 3e-7F) << w;
      EXPECT_NEAR(b, sin[c], 3e-7F) << w;
    }
  }
  EXPECT_LT(phases.bytes(), std::size_t{15000} * 16 * sizeof(float) / 20);
}

}  // namespace
}  // namespace qevict
