#include "kv/recent_store.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

Geometry geometry() {
  Geometry g;
  g.n_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = 4;
  return g;
}

// A row whose every value tells token, head and channel apart; exact in fp16.
std::vector<float> row(int token, int head, int offset) {
  std::vector<float> values(4);
  for (int c = 0; c < 4; ++c)
    values[c] = static_cast<float>(token * 16 + head * 8 + c * 2 + offset);
  return values;
}

void push(RecentStore& store, int token) {
  const int r = store.push_row();
  for (int h = 0; h < 2; ++h) store.write(r, h, row(token, h, 0).data(), row(token, h, 1).data());
}

int token_at(const RecentStore& store, int r) {
  std::vector<fp16_t> k(4), v(4);
  store.read(r, 1, k.data(), v.data());
  const int token = (static_cast<int>(fp16_to_fp32(k[0])) - 8) / 16;
  for (int c = 0; c < 4; ++c) {
    EXPECT_EQ(fp16_to_fp32(k[c]), row(token, 1, 0)[c]);
    EXPECT_EQ(fp16_to_fp32(v[c]), row(token, 1, 1)[c]);
  }
  return token;
}

TEST(RecentStore, FirstRowsBecomeSinksAndTheOldestLocalTokensLeaveFirst) {
  RecentStore store(geometry(), 2, 9);
  for (int t = 0; t < 10; ++t) push(store, t);
  EXPECT_EQ(store.n_sinks(), 2);
  EXPECT_EQ(store.n_local_tokens(), 8);
  store.drop_local(3);
  ASSERT_EQ(store.n_tokens(), 7);
  const int expected[] = {0, 1, 5, 6, 7, 8, 9};
  for (int r = 0; r < 7; ++r) EXPECT_EQ(token_at(store, r), expected[r]);
  push(store, 10);
  EXPECT_EQ(token_at(store, 7), 10);
}

TEST(RecentStore, AccountsForEveryAllocatedByte) {
  RecentStore store(geometry(), 2, 9);
  for (int t = 0; t < 5; ++t) {
    EXPECT_EQ(store.sink_bytes() + store.local_bytes() + store.reserved_bytes(), 16U * 32U);
    push(store, t);
  }
  EXPECT_EQ(store.sink_bytes(), 2U * 32U);
  EXPECT_EQ(store.local_bytes(), 3U * 32U);
  EXPECT_EQ(store.max_tokens(), 11);
  EXPECT_EQ(store.ref().capacity, 16);
}

TEST(RecentStore, LaysKeysOutByChannelAndValuesByToken) {
  RecentStore store(geometry(), 1, 3);
  for (int t = 0; t < 3; ++t) push(store, t);
  const RecentRef ref = store.ref();
  for (int t = 0; t < 3; ++t) {
    for (int h = 0; h < 2; ++h) {
      for (int c = 0; c < 4; ++c) {
        EXPECT_EQ(fp16_to_fp32(ref.k[(h * 4 + c) * ref.capacity + t]), row(t, h, 0)[c]);
        EXPECT_EQ(fp16_to_fp32(ref.v[(h * ref.capacity + t) * 4 + c]), row(t, h, 1)[c]);
      }
    }
  }
}

TEST(RecentStore, CopiesHalfPrecisionVerbatim) {
  RecentStore store(geometry(), 1, 3);
  const std::vector<fp16_t> k = {0x7bff, 0x0001, 0x8000, 0x3c00}, v = {1, 2, 3, 4};
  store.write_fp16(store.push_row(), 1, k.data(), v.data());
  std::vector<fp16_t> k2(4), v2(4);
  store.read(0, 1, k2.data(), v2.data());
  EXPECT_EQ(k, k2);
  EXPECT_EQ(v, v2);
}

TEST(RecentStore, ClearKeepsTheAllocation) {
  RecentStore store(geometry(), 1, 3);
  push(store, 0);
  store.clear();
  EXPECT_EQ(store.n_tokens(), 0);
  EXPECT_EQ(store.reserved_bytes(), 16U * 32U);
  push(store, 4);
  EXPECT_EQ(store.n_sinks(), 1);
  EXPECT_EQ(token_at(store, 0), 4);
}

}  // namespace
}  // namespace qevict
