// A batch of ragged sequences gives each of them the bits that it has alone.
#include "attention/batch_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "policies/registry.h"

namespace qevict {
namespace {

constexpr int kLayers = 2;

Geometry shape() {
  Geometry g;
  g.n_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = 16;
  return g;
}

struct Ragged {
  int n_prompt;
  double budget;
  const char* policy;
  double decay = 1.0;  // below 1: ranks change quickly, windows come back to Full
};
constexpr Ragged kRagged[] = {
    {3, 0.2, "qevict"},  {420, 0.15, "qevict"},     {150, 0.2, "full"},
    {61, 0.9, "qevict"}, {250, 0.4, "qevict", 0.5}, {310, 0.5, "qevict+"},
};
constexpr std::size_t kSequences = std::size(kRagged);

// Projections of a step: [kSequences] rows.
struct Step {
  std::vector<float> q, k, v;
  QkvBlock block(int n_tokens) const { return {q.data(), k.data(), v.data(), n_tokens}; }
};

std::vector<float> normals(std::mt19937& random, std::size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

Step random_step(std::mt19937& random) {
  const Geometry g = shape();
  const std::size_t q = static_cast<std::size_t>(g.n_heads) * g.head_dim;
  const std::size_t kv = static_cast<std::size_t>(g.n_kv_heads) * g.head_dim;
  return {normals(random, kSequences * q), normals(random, kSequences * kv),
          normals(random, kSequences * kv)};
}

// A sequence with a prompt in its cache; equal seeds give equal sequences.
struct Sequence {
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<TieredAttention> attention;

  Sequence(const Ragged& ragged, const KernelTable& kernels, int n_threads, unsigned seed) {
    const Geometry g = shape();
    CacheConfig config;
    config.policy = ragged.policy;
    config.budget = {KvBudget::Unit::Ratio, ragged.budget};
    configure_policy(*find_policy(ragged.policy), config);
    if (ragged.decay < 1.0) config.ranker = {Ranker::Kind::Decay, ragged.decay};
    auto created = KvCache::create(g, kLayers, RopeSpec::plain(g.pairing, g.head_dim, 10000.0),
                                   config, *find_policy(ragged.policy));
    EXPECT_TRUE(created.has_value()) << (created ? "" : created.error().message);
    cache = std::move(*created);
    attention = std::make_unique<TieredAttention>(*cache, kernels, n_threads);
    std::mt19937 random(seed);
    const std::size_t n = static_cast<std::size_t>(ragged.n_prompt);
    const std::size_t kv = static_cast<std::size_t>(g.n_kv_heads) * g.head_dim;
    EXPECT_TRUE(cache->begin_prompt(ragged.n_prompt, 100).has_value());
    attention->begin_prompt(ragged.n_prompt, ragged.n_prompt);
    for (int layer = 0; layer < kLayers; ++layer) {
      attention->begin_layer(layer);
      attention->set_block(0, ragged.n_prompt);
      const std::vector<float> q = normals(random, n * g.n_heads * g.head_dim);
      const std::vector<float> k = normals(random, n * kv), v = normals(random, n * kv);
      std::vector<float> out(q.size());
      attention->prepare(layer, {q.data(), k.data(), v.data(), ragged.n_prompt}, 0, 1);
      attention->attend(layer, out.data(), 0, 1);
      attention->finish_layer(layer);
    }
    cache->commit_prompt();
    attention->end_prompt();
  }
};

std::vector<Sequence> make_sequences(const KernelTable& kernels, int n_threads) {
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < kSequences; ++i) {
    sequences.emplace_back(kRagged[i], kernels, n_threads, static_cast<unsigned>(i));
  }
  return sequences;
}

void run_layer(Attention& attention, int layer, const QkvBlock& block, float* out, int n_threads) {
  const auto on_all = [&](auto&& work) {
    std::vector<std::thread> threads;
    for (int i = 1; i < n_threads; ++i) threads.emplace_back([&, i] { work(i); });
    work(0);
    for (std::thread& t : threads) t.join();
  };
  on_all([&](int i) { attention.prepare(layer, block, i, n_threads); });
  on_all([&](int i) { attention.attend(layer, out, i, n_threads); });
}

// One step of all sequences, alone or together. Returns the outputs [layer][sequence][width].
std::vector<float> step_alone(std::vector<Sequence>& sequences, const std::vector<Step>& layers) {
  const Geometry g = shape();
  const std::size_t q = static_cast<std::size_t>(g.n_heads) * g.head_dim;
  const std::size_t kv = static_cast<std::size_t>(g.n_kv_heads) * g.head_dim;
  std::vector<float> out(kLayers * kSequences * q);
  for (std::size_t i = 0; i < kSequences; ++i) {
    sequences[i].attention->begin_step();
    sequences[i].cache->begin_step();
    for (int layer = 0; layer < kLayers; ++layer) {
      const Step& step = layers[layer];
      const QkvBlock row{step.q.data() + i * q, step.k.data() + i * kv, step.v.data() + i * kv, 1};
      run_layer(*sequences[i].attention, layer, row, &out[(layer * kSequences + i) * q], 1);
    }
    sequences[i].cache->end_step();
  }
  return out;
}

std::vector<float> step_together(std::vector<Sequence>& sequences, const std::vector<Step>& layers,
                                 BatchAttention& batch, int n_threads) {
  const std::size_t row = static_cast<std::size_t>(shape().n_heads) * shape().head_dim;
  std::vector<TieredAttention*> attentions;
  for (Sequence& sequence : sequences) {
    attentions.push_back(sequence.attention.get());
    sequence.attention->begin_step();
    sequence.cache->begin_step();
  }
  batch.set_sequences(attentions);
  std::vector<float> out(kLayers * kSequences * row);
  for (int layer = 0; layer < kLayers; ++layer) {
    run_layer(batch, layer, layers[layer].block(kSequences), &out[layer * kSequences * row],
              n_threads);
  }
  for (Sequence& sequence : sequences) sequence.cache->end_step();
  return out;
}

template <typename T>
std::vector<T> copy(std::span<const T> values) {
  return {values.begin(), values.end()};
}

// Tiers, masses, payload and bytes.
void expect_same_cache(const KvCache& a, const KvCache& b) {
  EXPECT_EQ(a.bytes().total(), b.bytes().total());
  EXPECT_EQ(a.metadata().total(), b.metadata().total());
  EXPECT_EQ(a.counters().promotions, b.counters().promotions);
  for (int i = 0; i < kLayers; ++i) {
    const LayerCache &x = a.layer(i), &y = b.layer(i);
    EXPECT_EQ(copy(x.local_mass()), copy(y.local_mass()));
    EXPECT_EQ(copy(x.local_heads()), copy(y.local_heads()));
    std::vector<std::pair<const TierSlab*, const TierSlab*>> slabs = {{&x.full(), &y.full()}};
    for (int r = 0; r < x.n_rungs(); ++r) slabs.emplace_back(&x.quantized(r), &y.quantized(r));
    for (const auto& [s, t] : slabs) {
      EXPECT_EQ(copy(s->ids()), copy(t->ids()));
      EXPECT_EQ(copy(s->mass()), copy(t->mass()));
      for (SlotId w = 0; w < s->size(); ++w) {
        for (std::size_t k = 0; k < x.head_floats(); ++k) {
          ASSERT_EQ(s->heads(w)[static_cast<int>(k)], t->heads(w)[static_cast<int>(k)]);
        }
      }
      ASSERT_EQ(s->groups().size(), t->groups().size());
      for (std::size_t g = 0; g < s->groups().size(); ++g) {
        const GroupRef u = s->groups()[g], w = t->groups()[g];
        ASSERT_EQ(u.lanes, w.lanes);
        EXPECT_EQ(copy(std::span(u.data, s->window_bytes() * u.lanes)),
                  copy(std::span(w.data, t->window_bytes() * w.lanes)));
      }
    }
  }
}

TEST(BatchAttention, GivesEachSequenceTheBitsItHasAlone) {
  for (const std::string& isa : available_isas()) {
    // 2: whole sequences a thread. 7, more than sequences: heads are shared out. The scalar
    // reference is slow and the sharing is the same.
    const bool reference = isa == "reference";
    for (const int n_threads : reference ? std::vector{2} : std::vector{1, 2, 7}) {
      const KernelTable& kernels = *find_kernels(isa);
      std::vector<Sequence> alone = make_sequences(kernels, 1);
      std::vector<Sequence> together = make_sequences(kernels, n_threads);
      BatchAttention batch;
      std::mt19937 random(99);
      for (int i = 0; i < (reference ? 17 : 34); ++i) {
        std::vector<Step> layers;
        for (int layer = 0; layer < kLayers; ++layer) layers.push_back(random_step(random));
        ASSERT_EQ(step_alone(alone, layers), step_together(together, layers, batch, n_threads))
            << isa << " threads " << n_threads << " step " << i;
      }
      std::int64_t promotions = 0;
      for (std::size_t i = 0; i < kSequences; ++i) {
        SCOPED_TRACE(isa + " sequence " + std::to_string(i));
        expect_same_cache(*alone[i].cache, *together[i].cache);
        promotions += together[i].cache->counters().promotions;
      }
      EXPECT_GT(promotions, 0);
    }
  }
}

TEST(BatchAttention, ASequenceThatOverflowsDoesNotTouchTheOthers) {
  std::vector<std::vector<float>> outs;
  for (const bool broken : {false, true}) {
    std::vector<Sequence> sequences = make_sequences(active_kernels(), 2);
    BatchAttention batch;
    std::mt19937 random(5);
    std::vector<Step> layers = {random_step(random), random_step(random)};
    const std::size_t kv = static_cast<std::size_t>(shape().n_kv_heads) * shape().head_dim;
    if (broken) layers[1].k[2 * kv + 3] = NAN;
    outs.push_back(step_together(sequences, layers, batch, 2));
    for (std::size_t i = 0; i < kSequences; ++i) {
      EXPECT_EQ(sequences[i].attention->take_nonfinite_layer(), broken && i == 2 ? 1 : -1) << i;
    }
  }
  const std::size_t row = static_cast<std::size_t>(shape().n_heads) * shape().head_dim;
  for (std::size_t i = 0; i < kLayers * kSequences; ++i) {
    const std::span<const float> x(&outs[0][i * row], row), y(&outs[1][i * row], row);
    const bool same = std::ranges::equal(x, y);
    EXPECT_EQ(same, i != kSequences + 2) << i;
  }
}

TEST(BatchAttention, TimesItsFirstThread) {
  std::vector<Sequence> sequences = make_sequences(active_kernels(), 1);
  BatchAttention batch;
  std::mt19937 random(5);
  step_together(sequences, {random_step(random), random_step(random)}, batch, 1);
  EXPECT_GT(batch.take_seconds(), 0.0);
  EXPECT_EQ(batch.take_seconds(), 0.0);
}

}  // namespace
}  // namespace qevict
