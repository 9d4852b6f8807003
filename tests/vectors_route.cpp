// Op `route`: the state machine on given scores, driven through a real KvCache of one layer.
#include <algorithm>
#include <memory>

#include "kv/kv_cache.h"
#include "vectors_units.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;
using Ids = std::vector<WindowId>;

class MassScorer final : public Scorer {
 public:
  Needs needs() const override { return {.mass = true}; }
  void score(const LayerView& view, std::span<float> scores) const override {
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = view.windows[i].mass;
  }
};

class FixedAllocator final : public Allocator {
 public:
  explicit FixedAllocator(TierQuota quota) : quota_(quota) {}
  TierQuota quota(const BudgetPlan&, int, int) const override { return quota_; }

 private:
  TierQuota quota_;
};

PolicySpec fixed_policy(TierQuota quota) {
  PolicySpec policy;
  policy.name = "fixed";
  policy.make_scorer = [](const CacheConfig&) { return std::make_unique<MassScorer>(); };
  policy.make_allocator = [quota](const CacheConfig&) {
    return std::make_unique<FixedAllocator>(quota);
  };
  return policy;
}

Ids intersection(const Ids& a, const Ids& b) {
  Ids both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

// One run of the state machine.
struct Machine {
  Geometry g;
  std::unique_ptr<KvCache> cache;
  std::vector<LayerEvent> events;
  std::vector<double> scores;  // cumulative, by window
  int sinks = 0;

  void add_scores(const std::vector<float>& add, std::size_t row, std::size_t width) {
    for (std::size_t w = 0; w < width; ++w) scores[w] += add[row * width + w];
  }
  double score(WindowId w) const {
    return static_cast<std::size_t>(w) < scores.size() ? scores[w] : 0.0;
  }

  void prompt(int n, int max_new) {
    if (const Status ok = cache->begin_prompt(n, max_new); !ok) {
      throw std::runtime_error(ok.error().message);
    }
    const std::size_t values = static_cast<std::size_t>(n) * g.head_dim;
    std::vector<fp16_t> k(values), v(values);
    for (std::size_t i = 0; i < values; ++i) {
      k[i] = fp32_to_fp16(static_cast<float>(i % 13) - 6.0F);
      v[i] = fp32_to_fp16(static_cast<float>(i % 7));
    }
    std::vector<double> region;
    for (WindowId w = 0; sinks + w * g.window < n; ++w) region.push_back(score(w));
    PromptRows rows{k.data(), v.data(), n, n, std::min(n, sinks), sinks};
    cache->finish_prompt_layer(0, rows, {{}, {}, region});
    cache->commit_prompt();
  }

  // Omega decode steps; the scores stand before the event.
  void decode() {
    LayerCache& layer = cache->layer(0);
    const std::vector<float> row(static_cast<std::size_t>(g.head_dim), 0.5F);
    for (int j = 0; j < g.window; ++j) {
      cache->begin_step();
      cache->append(0, 0, row.data(), row.data());
      const auto set = [&](std::span<double> mass, auto&& id_of) {
        for (std::size_t i = 0; i < mass.size(); ++i) mass[i] = score(id_of(i));
      };
      set(layer.full_mass(), [&](std::size_t i) { return layer.full().ids()[i]; });
      set(layer.quantized_mass(), [&](std::size_t i) { return layer.quantized().ids()[i]; });
      const WindowId first = (layer.local_begin() - sinks) / g.window;
      set(layer.local_mass(), [&](std::size_t i) { return first + static_cast<WindowId>(i); });
      cache->end_step();
    }
  }
};

Machine make_machine(const json& p, const PolicySpec& policy) {
  Machine m;
  m.sinks = p.at("S");
  m.g.n_heads = m.g.n_kv_heads = 1;
  m.g.head_dim = 8;
  m.g.window = p.at("Omega");
  CacheConfig config;
  config.n_sink = m.sinks;
  config.n_local = p.at("L");
  config.window = m.g.window;
  config.quant_share = p.at("n_q").get<int>() > 0 ? 0.7 : 0.0;
  config.promotion = p.at("promotion");
  config.local_rule = p.at("rule") == "ceil" ? LocalRule::Ceil : LocalRule::Floor;
  config.budget.value = 0.2;  // the quota is fixed
  auto cache =
      KvCache::create(m.g, 1, RopeSpec::plain(RopePairing::Neox, 8, 10000.0), config, policy);
  if (!cache) throw std::runtime_error(cache.error().message);
  m.cache = std::move(*cache);
  return m;
}

}  // namespace

void check_route(const json& c, Check& check) {
  const json& p = c.at("params");
  const PolicySpec policy = fixed_policy({p.at("top_k_fp"), p.at("n_q")});
  Machine m = make_machine(p, policy);
  const Array init = read_array(c.at("inputs").at("score_init"));
  const std::vector<float> add = read_array(c.at("inputs").at("score_add")).floats();
  m.scores = init.data;
  LayerEvent event;
  m.cache->set_trace([&](const LayerEvent& e) { event = e; });

  const int n_events = p.at("events");
  const int prompt = p.at("P");
  Ids full, quantized;
  std::int64_t promoted = 0, fresh = 0, reactivated = 0, dropped_f = 0, dropped_q = 0,
               dropped_a = 0;
  WindowId ranked = 0;
  for (const json& e : c.at("expected").at("events")) {
    const int index = e.at("event");
    check.set_context("event " + std::to_string(index));
    m.add_scores(add, static_cast<std::size_t>(index), m.scores.size());
    if (index == 0) {
      // Far more new tokens than events, so that the budget never covers the context.
      m.prompt(prompt, n_events * m.g.window + 4096);
    } else {
      m.decode();
    }
    const LayerCache& layer = m.cache->layer(0);
    Ids aged;
    for (; m.sinks + ranked * m.g.window < layer.local_begin(); ++ranked) aged.push_back(ranked);
    const auto equal = [&](const char* name, const Ids& got) {
      check.equal_all(name, got, e.at(name).get<std::vector<std::int64_t>>());
    };
    check.equal("n", event.n_tokens, e.at("n"));
    check.equal("local_begin", std::min(event.n_tokens, layer.local_begin()), e.at("local_begin"));
    equal("aged", aged);
    equal("F", event.full);
    equal("Q", event.quantized);
    equal("E_new", event.evicted);
    equal("promoted", event.promoted);
    equal("demoted_fresh", event.first_demoted);
    equal("reactivated", event.reactivated);
    const Ids from_f = intersection(full, event.evicted);
    const Ids from_q = intersection(quantized, event.evicted);
    const Ids from_aged = intersection(aged, event.evicted);
    equal("dropped_F", from_f);
    equal("dropped_Q", from_q);
    equal("dropped_aged", from_aged);
    equal("ledger_active", event.quantized);
    equal("ledger_dormant", event.dormant);
    full = event.full;
    quantized = event.quantized;
    promoted += static_cast<std::int64_t>(event.promoted.size());
    fresh += static_cast<std::int64_t>(event.first_demoted.size());
    reactivated += static_cast<std::int64_t>(event.reactivated.size());
    dropped_f += static_cast<std::int64_t>(from_f.size());
    dropped_q += static_cast<std::int64_t>(from_q.size());
    dropped_a += static_cast<std::int64_t>(from_aged.size());
  }
  check.set_context("totals");
  const json& totals = c.at("expected").at("totals");
  check.equal("promoted", promoted, totals.at("promoted"));
  check.equal("demoted_fresh", fresh, totals.at("demoted_fresh"));
  check.equal("reactivated", reactivated, totals.at("reactivated"));
  check.equal("dropped_F", dropped_f, totals.at("dropped_F"));
  check.equal("dropped_Q", dropped_q, totals.at("dropped_Q"));
  check.equal("dropped_aged", dropped_a, totals.at("dropped_aged"));
}

}  // namespace qevict::vectors
