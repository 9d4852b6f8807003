// What a compression policy is: three independent parts plus a declaration of what it needs.
//
//   Scorer    ranks the windows of one layer (larger score = keep)
//   Allocator splits the byte budget into per-layer tier quotas
//   Schedule  says when routing happens
//
// A policy sees only the views below: never the graph, the kernels or the slabs. It declares the
// statistics it needs and only those are computed. Scorers are pure: same view, same scores.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/types.h"
#include "qevict/config.h"

namespace qevict {

struct Needs {
  bool mass = false;        // cumulative attention mass per window, mean over the query heads
  double mass_power = 1.0;  // attention^power is summed
  double mass_decay = 1.0;  // mass is multiplied by this at every decode step
  bool key_norm = false;    // mean L2 norm of the window's keys over tokens and KV heads
};

struct WindowView {
  WindowId id = 0;
  Tier tier = Tier::Local;  // where it is now; Local = has just aged out of the local zone
  float mass = 0.0F;
  float key_norm = 0.0F;
};

struct LayerView {
  int layer = 0;
  int n_layers = 0;
  TokenPos n_tokens = 0;                // appended so far
  std::span<const WindowView> windows;  // candidates, ascending id
};

class Scorer {
 public:
  virtual ~Scorer() = default;
  virtual Needs needs() const = 0;
  // scores [view.windows.size()]; larger = keep. Ties are broken by the lower window id.
  virtual void score(const LayerView& view, std::span<float> scores) const = 0;
};

// The byte budget of one sequence, solved (budget.h).
struct BudgetPlan;

class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual TierQuota quota(const BudgetPlan& plan, int layer, int n_layers) const = 0;
};

enum class Schedule : std::uint8_t {
  Never,        // the full cache
  EveryWindow,  // after the prompt and then every Omega decode steps
};

struct PolicySpec {
  std::string name;
  std::string paper;       // title or arXiv id
  std::string parameters;  // for `qevict policies`: "quant_share=0.7 window=8 ..."
  Schedule schedule = Schedule::EveryWindow;
  std::function<std::unique_ptr<Scorer>(const CacheConfig&)> make_scorer;
  std::function<std::unique_ptr<Allocator>(const CacheConfig&)> make_allocator;
};

}  // namespace qevict
