#include "eval/diagnostics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace qevict {
namespace {

using enum Place;

// Three steps over five positions; position 4 appears with step 2.
constexpr float kSteps[] = {0.50F, 0.25F, 0.125F, 0.125F, 0.00F,  //
                            0.25F, 0.25F, 0.125F, 0.125F, 0.25F,  //
                            0.00F, 0.50F, 0.250F, 0.125F, 0.125F};
constexpr StepAttention kAttention{kSteps, 3, 5};
constexpr Place kPlaces[] = {Sink, Evicted, Quantized, Full};

TEST(FutureMass, SumsTheStepsAfterTheEventByPlace) {
  const PlaceMass sums = future_mass(kAttention, 1, 32, kPlaces);
  EXPECT_DOUBLE_EQ(sums.sink, 0.25);
  EXPECT_DOUBLE_EQ(sums.evicted, 0.75);
  EXPECT_DOUBLE_EQ(sums.quantized, 0.375);
  EXPECT_DOUBLE_EQ(sums.full, 0.25);
  EXPECT_DOUBLE_EQ(sums.local, 0.0);  // position 4 did not exist at the event
  EXPECT_DOUBLE_EQ(sums.unsunk(), 1.375);
}

TEST(FutureMass, StopsAtTheHorizonOrTheEndOfTheRun) {
  EXPECT_DOUBLE_EQ(future_mass(kAttention, 0, 1, kPlaces).sink, 0.5);
  EXPECT_TRUE(has_full_horizon(kAttention, 1, 2));
  EXPECT_FALSE(has_full_horizon(kAttention, 2, 2));
  EXPECT_DOUBLE_EQ(future_mass(kAttention, 2, 2, kPlaces).evicted, 0.5);
  EXPECT_DOUBLE_EQ(future_mass(kAttention, 3, 2, kPlaces).unsunk(), 0.0);
}

TEST(MissedShare, LeavesSinksOutUnlessAsked) {
  const PlaceMass mass = {.sink = 2.0, .local = 1.0, .full = 0.5, .quantized = 1.5, .evicted = 1.0};
  EXPECT_DOUBLE_EQ(missed_share(mass), 0.25);
  EXPECT_DOUBLE_EQ(missed_share(mass, Sinks::Included), 1.0 / 6.0);
  EXPECT_DOUBLE_EQ(missed_share_without_quantized(mass), 0.625);
  EXPECT_TRUE(std::isnan(missed_share({.sink = 1.0})));
}

TEST(SelectionChurn, IsTheJaccardDistance) {
  const std::vector<WindowId> a = {1, 3, 5}, b = {3, 4, 5, 9}, none;
  EXPECT_DOUBLE_EQ(selection_churn(a, b), 1.0 - 2.0 / 5.0);
  EXPECT_DOUBLE_EQ(selection_churn(a, a), 0.0);
  EXPECT_DOUBLE_EQ(selection_churn(a, none), 1.0);
  EXPECT_DOUBLE_EQ(selection_churn(none, none), 0.0);
}

TEST(MassAgreement, ComparesDirectionSumAndOverlap) {
  const std::vector<double> policy = {3.0, 1.0}, full = {1.0, 2.0};
  const MassAgreement agreement = mass_agreement(policy, full);
  EXPECT_DOUBLE_EQ(agreement.cosine, 5.0 / std::sqrt(50.0));
  EXPECT_DOUBLE_EQ(agreement.ratio, 4.0 / 3.0);
  EXPECT_DOUBLE_EQ(agreement.overlap, 2.0 / 3.0);
  EXPECT_TRUE(std::isnan(mass_agreement({}, {}).cosine));
  EXPECT_TRUE(std::isnan(mass_agreement({}, {}).ratio));
}

TEST(RankCorrelation, SharesRanksOfEqualValues) {
  const std::vector<double> a = {1.0, 2.0, 2.0, 9.0}, up = {1.0, 2.0, 3.0, 4.0};
  EXPECT_NEAR(rank_correlation(up, std::vector<double>{2.0, 4.0, 8.0, 16.0}), 1.0, 1e-12);
  EXPECT_NEAR(rank_correlation(up, std::vector<double>{4.0, 3.0, 2.0, 1.0}), -1.0, 1e-12);
  // Ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3: 4.5 / sqrt(4.5 * 5).
  EXPECT_NEAR(rank_correlation(a, up), 4.5 / std::sqrt(22.5), 1e-12);
  EXPECT_TRUE(std::isnan(rank_correlation(std::vector<double>{1.0}, std::vector<double>{2.0})));
}

constexpr auto kUnranked = WindowState::Unranked, kOut = WindowState::Outside,
               kIn = WindowState::Full;

TEST(Revivals, CountSpellsOfMOrMoreEventsAndThoseThatFullEnds) {
  // Window 0 is out for three events before its first selection; window 1 for one and, at the end,
  // for two; window 2 is ranked late and never selected.
  const std::vector<WindowState> states = {kOut, kOut, kUnranked,  //
                                           kOut, kIn,  kUnranked,  //
                                           kOut, kIn,  kOut,       //
                                           kIn,  kOut, kOut,       //
                                           kIn,  kOut, kOut};
  const Revivals one = count_revivals(states, 3, 1);
  EXPECT_EQ(one.eligible, 4);
  EXPECT_EQ(one.times, (std::vector<int>{3, 1}));
  EXPECT_DOUBLE_EQ(one.rate(), 0.5);
  EXPECT_DOUBLE_EQ(one.median_time(), 2.0);
  const Revivals three = count_revivals(states, 3, 3);
  EXPECT_EQ(three.eligible, 2);
  EXPECT_EQ(three.times, (std::vector<int>{1}));
  const Revivals four = count_revivals(states, 3, 4);
  EXPECT_EQ(four.eligible, 0);
  EXPECT_TRUE(std::isnan(four.rate()));
  EXPECT_TRUE(std::isnan(four.median_time()));
}

TEST(Revivals, OfSeveralLayersAreOneRatioOfSums) {
  Revivals sum = count_revivals(std::vector<WindowState>{kOut, kIn}, 1, 1);
  sum += count_revivals(std::vector<WindowState>{kOut, kOut}, 2, 1);
  EXPECT_EQ(sum.eligible, 3);
  EXPECT_DOUBLE_EQ(sum.rate(), 1.0 / 3.0);
}

TEST(DefinedMean, LeavesOutWhatIsNotDefined) {
  EXPECT_DOUBLE_EQ(defined_mean(std::vector<double>{1.0, NAN, 3.0}), 2.0);
  EXPECT_TRUE(std::isnan(defined_mean(std::vector<double>{NAN})));
}

}  // namespace
}  // namespace qevict
