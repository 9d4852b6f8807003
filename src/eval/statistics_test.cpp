#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace qevict {
namespace {

using Values = std::vector<double>;

TEST(Statistics, MeanAndStandardErrorOfHandMadeValues) {
  EXPECT_EQ(mean(Values{}), 0.0);
  EXPECT_EQ(mean(Values{1.0, 2.0, 6.0}), 3.0);
  // Squares 4 + 1 + 9 = 14, variance 7, over n = 3.
  EXPECT_NEAR(standard_error(Values{1.0, 2.0, 6.0}), std::sqrt(7.0 / 3.0), 1e-15);
  EXPECT_EQ(standard_error(Values{5.0}), 0.0);
  EXPECT_EQ(standard_error(Values{2.0, 2.0, 2.0}), 0.0);
}

TEST(Statistics, GeometricMeanIsTheRootOfTheProduct) {
  EXPECT_NEAR(geometric_mean(Values{2.0, 8.0}), 4.0, 1e-14);
  EXPECT_NEAR(geometric_mean(Values{1e-3, 1e-1, 1e-2}), 1e-2, 1e-15);
  EXPECT_EQ(geometric_mean(Values{0.0, 8.0}), 0.0);
  EXPECT_EQ(geometric_mean(Values{}), 0.0);
}

TEST(Statistics, QuantilesInterpolate) {
  const Values v = {0.0, 10.0, 20.0};
  EXPECT_EQ(sorted_quantile(v, 0.0), 0.0);
  EXPECT_EQ(sorted_quantile(v, 0.25), 5.0);
  EXPECT_EQ(sorted_quantile(v, 1.0), 20.0);
  EXPECT_EQ(sorted_quantile(Values{}, 0.5), 0.0);
}

TEST(Bootstrap, EqualDifferencesLeaveNoDoubt) {
  const Difference d = bootstrap_mean(Values{0.25, 0.25, 0.25});
  EXPECT_EQ(d.mean, 0.25);
  EXPECT_EQ(d.low, 0.25);
  EXPECT_EQ(d.high, 0.25);
  EXPECT_EQ(d.n, 3);
  EXPECT_TRUE(d.clear());
}

TEST(Bootstrap, TwoDifferencesGiveTheThreePossibleMeans) {
  // Means -1, 0, 1 with probabilities 1/4, 1/2, 1/4: both ends of the interval are extremes.
  const Difference d = bootstrap_mean(Values{-1.0, 1.0});
  EXPECT_EQ(d.mean, 0.0);
  EXPECT_EQ(d.low, -1.0);
  EXPECT_EQ(d.high, 1.0);
  EXPECT_FALSE(d.clear());
}

TEST(Bootstrap, AgreesWithTheBinomialDistribution) {
  // 100 differences, 20 of them 1: the resampled mean is Binomial(100, 0.2) / 100, whose 2.5 % and
  // 97.5 % quantiles are 0.12 and 0.28.
  Values v(100, 0.0);
  for (int i = 0; i < 20; ++i) v[i * 5] = 1.0;
  const Difference d = bootstrap_mean(v);
  EXPECT_NEAR(d.mean, 0.2, 1e-12);
  EXPECT_NEAR(d.low, 0.12, 0.0101);
  EXPECT_NEAR(d.high, 0.28, 0.0101);
  EXPECT_TRUE(d.clear());
}

TEST(Bootstrap, FollowsFromItsSeed) {
  const Values v = {0.1, -0.4, 0.7, 0.3, 0.0, 0.2};
  const Difference a = bootstrap_mean(v, 7, 500);
  const Difference b = bootstrap_mean(v, 7, 500);
  const Difference c = bootstrap_mean(v, 8, 500);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  EXPECT_TRUE(a.low != c.low || a.high != c.high);
  EXPECT_LE(a.low, a.mean);
  EXPECT_GE(a.high, a.mean);
}

TEST(Bootstrap, OneDifferenceOrNoneHasNoInterval) {
  const Difference one = bootstrap_mean(Values{0.5});
  EXPECT_EQ(one.low, 0.5);
  EXPECT_EQ(one.high, 0.5);
  EXPECT_EQ(one.n, 1);
  EXPECT_EQ(bootstrap_mean(Values{}).n, 0);
}

TEST(Bootstrap, GroupsCountAlikeWhateverTheirSize) {
  const std::vector<Values> groups = {{1.0}, {0.0, 0.0, 0.0}, {}};
  const Difference d = bootstrap_group_mean(groups);
  EXPECT_EQ(d.mean, 0.5);
  // Drawn within groups: a group of equal values always has the same mean.
  EXPECT_EQ(d.low, 0.5);
  EXPECT_EQ(d.high, 0.5);
  EXPECT_EQ(d.n, 4);
}

}  // namespace
}  // namespace qevict
