// QEvict's windows on a precision ladder, ranked by the shares that single query heads give them
// (docs/qevict-plus.md).
#include "kv/budget.h"
#include "policies/parameters.h"
#include "policies/parts.h"

namespace qevict {
namespace {

enum class Bits { ByLoss, ByBudget, Int2, Int3, Int4, Int8 };
enum class Layers { Tilted, Even };

struct Options {
  int window = 8;
  int n_sink = 5;
  int n_local = 4;
  Bits bits = Bits::ByLoss;
  Layers layers = Layers::Tilted;
  HeadRank rank = HeadRank::Heads;
  bool strict = true;  // the budget holds between routing events, too
  void declare(Parameters& p) {
    p.integer("window", window, 8, 32);
    p.integer("n_sink", n_sink, 0, 1 << 20);
    p.integer("n_local", n_local, 0, 1 << 20);
    p.choice("bits", bits, {"loss", "budget", "2", "3", "4", "8"});
    p.choice("layers", layers, {"tilted", "even"});
    p.choice("rank", rank, {"heads", "all", "recent", "mean"});
    p.flag("strict", strict);
  }
};

void configure(CacheConfig& config) {
  const Options options = read_options<Options>(config);
  config.window = options.window;
  config.n_sink = options.n_sink;
  config.n_local = options.n_local;
  config.local_share = 0.0;
  config.quant_share = 1.0;
  config.quant_bits = 2;  // of the geometry; every rung has its own
  config.promotion = false;
  if (options.strict) config.strict_budget = true;
}

class HeadShareScorer final : public Scorer {
 public:
  explicit HeadShareScorer(HeadRank rank) : rank_(rank) {}
  Needs needs() const override { return {.head_sums = true}; }
  void score(const LayerView& view, std::span<float> scores) const override {
    score_head_shares(view.heads, scores, rank_);
  }

 private:
  HeadRank rank_;
};

class LadderAllocator final : public Allocator {
 public:
  LadderAllocator(const Options& options, bool strict) : options_(options), strict_(strict) {}
  TierQuota quota(const BudgetPlan&, int, int) const override { return {}; }
  LadderQuota ladder(const BudgetPlan& plan, int layer, int n_layers) const override {
    constexpr int kBits[] = {0, 0, 2, 3, 4, 8};
    const Geometry& g = plan.geometry;
    const std::int64_t reserved = strict_ ? plan.reserved_tokens : ladder_window_tokens(g);
    std::int64_t free =
        ladder_free_bytes(g, plan.total_tokens, plan.n_sink, plan.n_local, reserved);
    if (options_.layers == Layers::Tilted) {
      const double kept =
          static_cast<double>(plan.total_tokens) / static_cast<double>(plan.context_tokens);
      free = static_cast<std::int64_t>(static_cast<double>(free) *
                                       ladder_layer_share(kept, layer, n_layers));
    }
    if (options_.bits == Bits::ByLoss) return ladder_bytes(g, free);
    return ladder_quota(g, free,
                        ladder_windows(plan.context_tokens, plan.n_sink, plan.n_local, g.window),
                        kBits[static_cast<int>(options_.bits)]);
  }

 private:
  Options options_;
  bool strict_;
};

}  // namespace

PolicySpec qevict_plus_policy() {
  return {.name = "qevict+",
          .paper = "QEvict's windows in 8, 4, 3 or 2 bits by budget, ranked by single heads",
          .parameters = options_text<Options>(),
          .schedule = Schedule::EveryWindow,
          .ladder = true,
          .check_parameters = check_options<Options>,
          .configure = configure,
          .make_scorer =
              [](const CacheConfig& config) {
                return std::make_unique<HeadShareScorer>(read_options<Options>(config).rank);
              },
          .make_allocator =
              [](const CacheConfig& config) {
                return std::make_unique<LadderAllocator>(read_options<Options>(config),
                                                         config.strict_budget);
              }};
}

}  // namespace qevict
