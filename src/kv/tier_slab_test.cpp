#include "kv/tier_slab.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace qevict {
namespace {

Geometry geometry() {
  Geometry g;
  g.n_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = 8;
  g.window = 4;
  return g;
}

constexpr std::size_t kHeadFloats = 3;

using Bytes = std::vector<std::uint8_t>;

// A slab of either tier behind one byte-wise interface.
struct AnySlab {
  TierSlab slab;
  Tier tier;

  void store(SlotId slot, const Bytes& bytes) {
    if (tier == Tier::Quantized) return slab.store_block(slot, bytes.data());
    const auto* k = reinterpret_cast<const fp16_t*>(bytes.data());
    slab.store_full(slot, k, k + bytes.size() / 4);
  }
  Bytes load(SlotId slot) const {
    Bytes bytes(slab.window_bytes());
    if (tier == Tier::Quantized) {
      slab.load_block(slot, bytes.data());
    } else {
      auto* k = reinterpret_cast<fp16_t*>(bytes.data());
      slab.load_full(slot, k, k + bytes.size() / 4);
    }
    return bytes;
  }
};

class TierSlabTest : public testing::TestWithParam<Tier> {
 protected:
  static void set_heads(TierSlab& slab, SlotId slot, WindowId id) {
    const auto x = static_cast<float>(id);
    const float record[kHeadFloats] = {x + 0.5F, x + 1.5F, x + 2.5F};
    slab.set_heads(slot, {record});
  }
  // Checks the slab against the model: window id -> payload.
  static void expect_holds(const AnySlab& any, const std::map<WindowId, Bytes>& model) {
    const TierSlab& slab = any.slab;
    ASSERT_EQ(slab.size(), static_cast<int>(model.size()));
    EXPECT_EQ(slab.bytes(), model.size() * slab.window_bytes());
    int lanes = 0;
    for (std::size_t g = 0; g < slab.groups().size(); ++g) {
      const GroupRef& group = slab.groups()[g];
      if (g + 1 < slab.groups().size()) EXPECT_EQ(group.lanes, kLanes);
      EXPECT_GT(group.lanes, 0);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(group.data) % 64, 0U);
      lanes += group.lanes;
    }
    EXPECT_EQ(lanes, slab.size());
    for (SlotId slot = 0; slot < slab.size(); ++slot) {
      const WindowId id = slab.ids()[slot];
      ASSERT_TRUE(model.contains(id));
      EXPECT_EQ(any.load(slot), model.at(id));
      EXPECT_EQ(slab.mass()[slot], id * 0.5);
      EXPECT_EQ(slab.key_norm()[slot], static_cast<float>(id) + 0.25F);
      EXPECT_EQ(slab.heads(slot)[0], static_cast<float>(id) + 0.5F);
      EXPECT_EQ(slab.heads(slot)[2], static_cast<float>(id) + 2.5F);
    }
  }
};

TEST_P(TierSlabTest, KeepsEveryWindowUnderRandomRemovalsAndGrowth) {
  AnySlab any{TierSlab(geometry(), GetParam(), kHeadFloats), GetParam()};
  std::map<WindowId, Bytes> model;
  std::mt19937 rng(11);
  WindowId next = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<SlotId> slots(static_cast<std::size_t>(any.slab.size()));
    for (SlotId s = 0; s < any.slab.size(); ++s) slots[s] = s;
    std::ranges::shuffle(slots, rng);
    slots.resize(rng() % (slots.size() + 1) / (1 + rng() % 4));
    for (const SlotId s : slots) model.erase(any.slab.ids()[s]);
    const int added = static_cast<int>(rng() % 40) / (1 + static_cast<int>(rng() % 8));
    const SlotId first = any.slab.remove_and_grow(slots, added);
    EXPECT_EQ(first, static_cast<SlotId>(model.size()));
    for (int i = 0; i < added; ++i) {
      Bytes payload(any.slab.window_bytes());
      for (auto& byte : payload) byte = static_cast<std::uint8_t>(rng());
      any.store(first + i, payload);
      any.slab.set_record(first + i, next, next * 0.5, static_cast<float>(next) + 0.25F);
      set_heads(any.slab, first + i, next);
      model[next++] = payload;
    }
    ASSERT_NO_FATAL_FAILURE(expect_holds(any, model));
  }
}

TEST_P(TierSlabTest, CopiesDeeplyAndClears) {
  AnySlab any{TierSlab(geometry(), GetParam(), kHeadFloats), GetParam()};
  any.slab.remove_and_grow({}, 18);
  std::map<WindowId, Bytes> model;
  for (SlotId s = 0; s < 18; ++s) {
    model[s] = Bytes(any.slab.window_bytes(), static_cast<std::uint8_t>(s + 1));
    any.store(s, model[s]);
    any.slab.set_record(s, s, s * 0.5, static_cast<float>(s) + 0.25F);
    set_heads(any.slab, s, s);
  }
  const AnySlab copy = any;
  any.store(3, Bytes(any.slab.window_bytes(), 0xff));
  const SlotId removed[] = {0, 17};
  any.slab.remove_and_grow(removed, 0);
  expect_holds(copy, model);
  any.slab = copy.slab;
  expect_holds(any, model);
  any.slab.clear();
  expect_holds(any, {});
  EXPECT_EQ(any.slab.position_bytes() + any.slab.score_bytes(), 0U);
}

TEST_P(TierSlabTest, CountsItsRecords) {
  TierSlab slab(geometry(), GetParam());
  slab.remove_and_grow({}, 5);
  EXPECT_EQ(slab.position_bytes(), 5 * sizeof(WindowId));
  EXPECT_EQ(slab.score_bytes(), 5 * (sizeof(double) + sizeof(float)));
  TierSlab with_heads(geometry(), GetParam(), kHeadFloats);
  with_heads.remove_and_grow({}, 5);
  EXPECT_EQ(with_heads.score_bytes(),
            5 * (sizeof(double) + sizeof(float)) + kLanes * kHeadFloats * sizeof(float));
}

TEST_P(TierSlabTest, LeavesFullGroupsInPlaceWhenOnlyTheTailChanges) {
  TierSlab slab(geometry(), GetParam());
  slab.remove_and_grow({}, 40);
  const GroupRef first = slab.groups()[0], second = slab.groups()[1];
  const SlotId removed[] = {39};
  slab.remove_and_grow(removed, 0);
  EXPECT_EQ(slab.groups()[0].data, first.data);
  EXPECT_EQ(slab.groups()[1].data, second.data);
  EXPECT_EQ(slab.groups()[2].lanes, 7);
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierSlabTest, testing::Values(Tier::Full, Tier::Quantized),
                         [](const auto& info) {
                           return info.param == Tier::Full ? "Full" : "Quantized";
                         });

}  // namespace
}  // namespace qevict
