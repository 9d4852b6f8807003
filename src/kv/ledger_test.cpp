#include "kv/ledger.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

TEST(Ledger, GivesBackTheSameBytesAndCountsThem) {
  Ledger ledger;
  EXPECT_EQ(ledger.entry_bytes(), 0U);
  ledger.put(7, {1, 2, 3});
  ledger.put(2, {4, 5, 6});
  EXPECT_EQ(ledger.size(), 2U);
  EXPECT_EQ(ledger.block_bytes(), 6U);
  EXPECT_GT(ledger.entry_bytes(), 0U);
  EXPECT_EQ(ledger.windows(), (std::vector<WindowId>{2, 7}));
  EXPECT_EQ(ledger.block(7), (std::vector<std::uint8_t>{1, 2, 3}));
  EXPECT_EQ(ledger.take(7), (std::vector<std::uint8_t>{1, 2, 3}));
  EXPECT_FALSE(ledger.contains(7));
  EXPECT_EQ(ledger.block_bytes(), 3U);
}

TEST(Ledger, ErasesOnEvictionAndIgnoresAbsentWindows) {
  Ledger ledger;
  ledger.put(1, {9});
  ledger.erase(5);
  EXPECT_EQ(ledger.size(), 1U);
  ledger.erase(1);
  EXPECT_EQ(ledger.size(), 0U);
  EXPECT_EQ(ledger.block_bytes(), 0U);
  ledger.put(1, {9});
  ledger.clear();
  EXPECT_FALSE(ledger.contains(1));
  EXPECT_EQ(ledger.block_bytes(), 0U);
}

TEST(LedgerDeathTest, RefusesASecondQuantisation) {
  Ledger ledger;
  ledger.put(1, {9});
  EXPECT_DEATH(ledger.put(1, {8}), "internal error");
}

}  // namespace
}  // namespace qevict
