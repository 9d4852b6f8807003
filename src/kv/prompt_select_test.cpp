// Policies that select tokens once: the view they read, what the cache then holds.
#include "kv/prompt_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

namespace qevict {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 8;

using SelectFunction = std::function<void(const PromptView&, int, KeptTokens&)>;

// A selector made of a function that the test may change.
struct TestSelector final : Selector {
  SelectorNeeds wanted;
  int smallest = 1;
  bool over = false;
  const SelectFunction* on_select = nullptr;
  SelectorNeeds needs() const override { return wanted; }
  int smallest_budget() const override { return smallest; }
  void select(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    (*on_select)(view, n_kept, kept);
  }
  bool over_layers() const override { return over; }
  // The score of a token is its key's first channel.
  void score(const PromptView& view, int, HeadScores& scores) const override {
    scores.resize(view.heads.size());
    for (std::size_t h = 0; h < scores.size(); ++h) {
      for (std::size_t i = 0; i < view.heads[h].positions.size(); ++i) {
        scores[h].push_back(view.heads[h].k[i * kDim]);
      }
    }
  }
  // The best of all layers and heads.
  void select_over_layers(std::span<const HeadScores> scores, int n_kept,
                          std::span<KeptTokens> kept) const override {
    std::vector<float> all;
    for (const HeadScores& layer : scores) {
      for (const auto& head : layer) all.insert(all.end(), head.begin(), head.end());
    }
    std::ranges::sort(all, std::greater());
    const float limit = all[static_cast<std::size_t>(n_kept) * kKvHeads * scores.size() - 1];
    for (std::size_t l = 0; l < scores.size(); ++l) {
      for (int h = 0; h < kKvHeads; ++h) {
        for (std::size_t i = 0; i < scores[l][h].size(); ++i) {
          if (scores[l][h][i] >= limit) kept[l][h].push_back(static_cast<int>(i));
        }
      }
    }
  }
};

// Head h keeps n_kept - 1 + 2 h of its last tokens: n_kept on average.
void keep_last(const PromptView& view, int n_kept, KeptTokens& kept) {
  for (int h = 0; h < view.n_kv_heads(); ++h) {
    const int n = static_cast<int>(view.heads[h].positions.size());
    for (int i = std::max(0, n - (n_kept - 1 + 2 * h)); i < n; ++i) kept[h].push_back(i);
  }
}

class Select : public testing::Test {
 protected:
  using Row = std::vector<fp16_t>;

  void make(double budget, KvBudget::Unit unit = KvBudget::Unit::Ratio, int n_layers = 2) {
    selector.on_select = &on_select;
    policy.name = "test";
    policy.schedule = Schedule::Once;
    policy.make_selector = [this](const CacheConfig&) {
      return std::make_unique<TestSelector>(selector);
    };
    CacheConfig config;
    config.budget = {unit, budget};
    configure_policy(policy, config);
    Geometry g;
    g.n_heads = kHeads;
    g.n_kv_heads = kKvHeads;
    g.head_dim = kDim;
    g.window = config.window;
    auto made =
        KvCache::create(g, n_layers, RopeSpec::plain(g.pairing, kDim, 10000.0), config, policy);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    cache = std::move(*made);
  }

  const Row& key(int layer, int head, TokenPos p) { return token(layer, head, p, 0); }
  const Row& value(int layer, int head, TokenPos p) { return token(layer, head, p, 1); }
  const Row& token(int layer, int head, TokenPos p, int which) {
    Row& row = tokens[{layer, head, p * 2 + which}];
    while (row.size() < kDim) row.push_back(fp32_to_fp16(normal(random)));
    return row;
  }

  Status finish_layer(int layer, TokenPos n, const PromptQueries& queries = {}) {
    PromptRows rows;
    rows.region_begin = cache->unit(layer, 0).local_begin();
    rows.n_rows = n - rows.region_begin;
    rows.capacity = rows.n_rows + 2;
    Row k(static_cast<std::size_t>(kKvHeads) * rows.capacity * kDim), v = k;
    for (int h = 0; h < kKvHeads; ++h) {
      for (int r = 0; r < rows.n_rows; ++r) {
        const std::ptrdiff_t at = (std::ptrdiff_t{h} * rows.capacity + r) * kDim;
        std::ranges::copy(key(layer, h, rows.region_begin + r), k.begin() + at);
        std::ranges::copy(value(layer, h, rows.region_begin + r), v.begin() + at);
      }
    }
    rows.k = k.data();
    rows.v = v.data();
    const PromptMass none[kKvHeads];
    return cache->finish_prompt_layer(layer, rows, none, queries);
  }

  void prompt(int n_new, int max_new) {
    ASSERT_TRUE(cache->begin_prompt(n_new, max_new).has_value());
    const TokenPos n = cache->n_tokens() + n_new;
    for (int i = 0; i < cache->n_layers(); ++i) ASSERT_TRUE(finish_layer(i, n).has_value());
    cache->commit_prompt();
  }

  void step() {
    cache->begin_step();
    for (int l = 0; l < cache->n_layers(); ++l) {
      for (int h = 0; h < kKvHeads; ++h) {
        float k[kDim], v[kDim];
        for (int c = 0; c < kDim; ++c) {
          k[c] = fp16_to_fp32(key(l, h, cache->n_tokens() - 1)[c]);
          v[c] = fp16_to_fp32(value(l, h, cache->n_tokens() - 1)[c]);
        }
        cache->append(l, h, k, v);
      }
    }
    cache->end_step();
  }

  // Positions that a unit holds in Full, ascending; their payload must be that of the tokens.
  std::vector<TokenPos> held(int layer, int head) {
    const TierSlab& full = cache->unit(layer, head).full();
    Row k(kDim), v(kDim);
    for (SlotId s = 0; s < full.size(); ++s) {
      full.load_full(s, k.data(), v.data());
      EXPECT_EQ(k, key(layer, head, full.ids()[s]));
      EXPECT_EQ(v, value(layer, head, full.ids()[s]));
    }
    std::vector<TokenPos> ids(full.ids().begin(), full.ids().end());
    std::ranges::sort(ids);
    return ids;
  }

  static std::vector<TokenPos> range(TokenPos first, TokenPos end) {
    std::vector<TokenPos> all;
    for (; first < end; ++first) all.push_back(first);
    return all;
  }

  SelectFunction on_select = keep_last;
  TestSelector selector;
  PolicySpec policy;
  std::unique_ptr<KvCache> cache;
  std::map<std::tuple<int, int, int>, Row> tokens;
  std::mt19937 random{3};
  std::normal_distribution<float> normal;
};

TEST_F(Select, EachHeadHoldsItsTokensAndEverythingGenerated) {
  make(0.5);
  std::vector<LayerEvent> events;
  cache->set_trace([&](const LayerEvent& e) { events.push_back(e); });
  prompt(100, 20);  // 60 tokens of budget, 20 of them for what is generated
  EXPECT_EQ(cache->budget().kept_tokens, 40);
  EXPECT_FALSE(cache->budget().over_budget);
  for (int l = 0; l < 2; ++l) {
    EXPECT_EQ(held(l, 0), range(61, 100));
    EXPECT_EQ(held(l, 1), range(59, 100));
    EXPECT_EQ(cache->unit(l, 1).n_evicted(), 59);
  }
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[3].layer, 1);
  EXPECT_EQ(events[3].head, 1);
  EXPECT_EQ(events[3].full, range(59, 100));
  EXPECT_EQ(events[3].evicted, range(0, 59));
  const std::size_t token = 4 * kDim;  // bytes of one token and head
  EXPECT_EQ(cache->bytes().full, 4 * 40 * token);
  EXPECT_EQ(cache->peak_bytes(), cache->bytes().total());
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(cache->bytes().local, 4 * 20 * token);
  EXPECT_EQ(static_cast<std::int64_t>(cache->bytes().total()), cache->budget().budget_bytes);
  EXPECT_EQ(cache->reserved_bytes(), 4 * 12 * token);  // 20 rows, in blocks of 16
  EXPECT_EQ(cache->counters().events, 1);
  EXPECT_EQ(cache->counters().evictions, 4 * 60);
}

TEST_F(Select, AnAppendedPromptMakesHeldAndNewTokensCandidates) {
  make(0.5);
  prompt(100, 20);
  for (int i = 0; i < 5; ++i) step();
  std::vector<std::vector<TokenPos>> positions;
  on_select = [&](const PromptView& view, int n_kept, KeptTokens& kept) {
    EXPECT_EQ(n_kept, (125 + 10) / 2 - 10);
    for (int h = 0; h < kKvHeads; ++h) {
      const PromptHead& head = view.heads[h];
      positions.emplace_back(head.positions.begin(), head.positions.end());
      for (std::size_t i = 0; i < head.positions.size(); ++i) {
        for (int c = 0; c < kDim; ++c) {
          ASSERT_EQ(head.k[i * kDim + c], fp16_to_fp32(key(view.layer, h, head.positions[i])[c]));
          ASSERT_EQ(head.v[i * kDim + c], fp16_to_fp32(value(view.layer, h, head.positions[i])[c]));
        }
        if (i % 2 == 1) kept[h].push_back(static_cast<int>(i));
      }
    }
  };
  prompt(20, 10);
  ASSERT_EQ(positions.size(), 4U);
  EXPECT_EQ(positions[0], range(61, 125));
  EXPECT_EQ(positions[1], range(59, 125));
  EXPECT_EQ(held(1, 0).front(), 62);
  EXPECT_EQ(held(1, 0).size(), 32U);
  EXPECT_EQ(cache->unit(0, 0).recent().n_tokens(), 0);
}

TEST_F(Select, RollbackRestoresTokensAndRoom) {
  make(0.5);
  prompt(60, 10);
  step();
  const std::vector<TokenPos> before = held(1, 1);
  for (const int layers : {0, 1, 2}) {
    ASSERT_TRUE(cache->begin_prompt(30, 50).has_value());
    for (int l = 0; l < layers; ++l) ASSERT_TRUE(finish_layer(l, 91).has_value());
    EXPECT_EQ(cache->backup_bytes() > 0, layers > 0);
    cache->rollback_prompt();
    EXPECT_EQ(held(1, 1), before);
    EXPECT_EQ(cache->unit(0, 0).recent().n_tokens(), 1);
    EXPECT_EQ(cache->budget().context_tokens, 70);
  }
  for (int i = 0; i < 9; ++i) step();
  EXPECT_EQ(cache->n_tokens(), 70);
}

TEST_F(Select, FloorOfThePolicyIsKeptAndToldAsOverBudget) {
  struct {
    double budget;
    KvBudget::Unit unit;
    int n_new, max_new, kept;
    bool over;
  } const cases[] = {
      {0.2, KvBudget::Unit::Ratio, 100, 20, 16, true},        // 24 - 20 < 16
      {0.3, KvBudget::Unit::Ratio, 100, 20, 16, false},       // 36 - 20
      {30, KvBudget::Unit::Tokens, 100, 20, 16, true},        // 30 - 20
      {40, KvBudget::Unit::Tokens, 100, 20, 20, false},       // 40 - 20
      {40 * 128, KvBudget::Unit::Bytes, 100, 20, 20, false},  // 128 bytes a token of both layers
      {0.2, KvBudget::Unit::Ratio, 10, 2, 10, true},          // shorter than the floor: all stays
      {1.0, KvBudget::Unit::Ratio, 10, 2, 10, false},
  };
  selector.smallest = 16;
  for (const auto& c : cases) {
    make(c.budget, c.unit);
    prompt(c.n_new, c.max_new);
    EXPECT_EQ(cache->bytes().full, std::size_t{4 * 4 * kDim} * c.kept) << c.budget;
    EXPECT_EQ(cache->budget().over_budget, c.over) << c.budget;
  }
}

TEST_F(Select, AnAmpleBudgetSelectsNothing) {
  on_select = [](const PromptView&, int, KeptTokens&) { FAIL() << "nothing to select"; };
  make(200, KvBudget::Unit::Tokens);
  prompt(100, 20);
  prompt(30, 50);
  EXPECT_EQ(held(0, 0), range(0, 130));
  EXPECT_TRUE(cache->budget().uncompressed);
}

TEST_F(Select, PoliciesOverLayersChooseWhenAllAreThere) {
  selector.over = true;
  make(0.5);
  std::vector<LayerEvent> events;
  cache->set_trace([&](const LayerEvent& e) { events.push_back(e); });
  prompt(100, 20);
  const std::size_t token = 4 * kDim;
  EXPECT_EQ(cache->peak_bytes(), 4 * 100 * token) << "no saving while the prompt is read";
  EXPECT_EQ(cache->bytes().full, 4 * 40 * token);
  ASSERT_EQ(events.size(), 4U);
  float lowest = 1e9F, highest_evicted = -1e9F;
  for (int l = 0; l < 2; ++l) {
    for (int h = 0; h < kKvHeads; ++h) {
      const std::vector<TokenPos> kept = held(l, h);
      EXPECT_EQ(events[l * kKvHeads + h].full, kept);
      EXPECT_EQ(events[l * kKvHeads + h].evicted.size(), 100 - kept.size());
      for (TokenPos p = 0; p < 100; ++p) {
        const float score = fp16_to_fp32(key(l, h, p)[0]);
        if (std::ranges::binary_search(kept, p)) {
          lowest = std::min(lowest, score);
        } else {
          highest_evicted = std::max(highest_evicted, score);
        }
      }
    }
  }
  EXPECT_GT(lowest, highest_evicted);
  for (int i = 0; i < 20; ++i) step();
  ASSERT_TRUE(cache->begin_prompt(10, 10).has_value());
  ASSERT_TRUE(finish_layer(0, 130).has_value());
  cache->rollback_prompt();
  EXPECT_EQ(cache->bytes().total(), 4 * 60 * token);
  prompt(10, 10);
  EXPECT_EQ(cache->bytes().full, 4 * (70 - 10) * token);
}

TEST_F(Select, MassAndNormsFollowTheirTokensThroughAnAppendedPrompt) {
  selector.wanted = {.value_norms = true, .mass = true};
  make(0.5);
  ASSERT_TRUE(cache->begin_prompt(30, 0).has_value());
  PromptQueries masses;
  const std::vector<double> ones(30, 1.0);
  const std::vector<std::span<const double>> all(kHeads, ones);
  masses.mass = all;
  EXPECT_FALSE(finish_layer(0, 30, masses).has_value()) << "no source of value norms";
  cache->rollback_prompt();
  int computed = 0;
  cache->set_value_norms([&](int, int head, const float* v, int n, float* norms) -> Status {
    computed += n;
    for (int i = 0; i < n; ++i) norms[i] = v[i * kDim] + static_cast<float>(head);
    return {};
  });
  on_select = [&](const PromptView& view, int, KeptTokens& kept) {
    for (int q = 0; q < kHeads; ++q) {
      const int h = q / view.group_size();
      for (std::size_t i = 0; i < view.heads[h].positions.size(); ++i) {
        const TokenPos p = view.heads[h].positions[i];
        EXPECT_EQ(view.mass[q][i], 1000.0 * q + p);
        EXPECT_EQ(view.value_norms[q][i],
                  fp16_to_fp32(value(view.layer, h, p)[0]) + static_cast<float>(q));
      }
    }
    // Every third token, so that slots and positions are in different orders later.
    for (int h = 0; h < kKvHeads; ++h) {
      for (std::size_t i = h; i < view.heads[h].positions.size(); i += 3) {
        kept[h].push_back(static_cast<int>(i));
      }
    }
  };
  for (const bool known : {false, true}) {
    const int n_new = known ? 40 : 60;
    computed = 0;
    ASSERT_TRUE(cache->begin_prompt(n_new, 5).has_value());
    const TokenPos first = cache->n_tokens();
    for (int l = 0; l < 2; ++l) {
      std::vector<std::vector<double>> mass(kHeads);
      std::vector<std::vector<float>> norms(kHeads);
      for (int q = 0; q < kHeads; ++q) {
        for (const WindowId id : cache->unit(l, q / 2).full().ids()) {
          mass[q].push_back(1000.0 * q + id);
        }
        for (TokenPos p = first; p < first + n_new; ++p) {
          mass[q].push_back(1000.0 * q + p);
          norms[q].push_back(fp16_to_fp32(value(l, q / 2, p)[0]) + static_cast<float>(q));
        }
      }
      PromptQueries queries;
      const std::vector<std::span<const double>> mass_views(mass.begin(), mass.end());
      const std::vector<std::span<const float>> norm_views(norms.begin(), norms.end());
      queries.mass = mass_views;
      if (known) queries.value_norms = norm_views;
      ASSERT_TRUE(finish_layer(l, first + n_new, queries).has_value());
    }
    cache->commit_prompt();
    EXPECT_EQ(computed, known ? 2 * 2 * (20 + 20) : 2 * kHeads * 60);
  }
}

TEST_F(Select, AnErrorOfTheNormsEndsThePrompt) {
  selector.wanted.value_norms = true;
  make(0.5);
  cache->set_value_norms([](int layer, int, const float*, int, float*) -> Status {
    if (layer == 0) return {};
    return runtime_error("no such weights");
  });
  ASSERT_TRUE(cache->begin_prompt(60, 5).has_value());
  EXPECT_TRUE(finish_layer(0, 60).has_value());
  EXPECT_FALSE(finish_layer(1, 60).has_value());
  cache->rollback_prompt();
  EXPECT_EQ(cache->bytes().total(), 0U);
}

TEST_F(Select, RefusesAConfigurationThatStoresWindows) {
  make(0.5);
  Geometry g = cache->geometry();
  CacheConfig config = cache->config();
  config.n_sink = 4;
  EXPECT_FALSE(KvCache::create(g, 1, cache->rope(), config, policy).has_value());
  config.n_sink = 0;
  config.window = g.window = 8;
  EXPECT_FALSE(KvCache::create(g, 1, cache->rope(), config, policy).has_value());
}

}  // namespace
}  // namespace qevict
