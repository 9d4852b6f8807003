// What a compression policy is: independent parts plus a declaration of what it needs.
//
//   Schedule  says when routing happens
//   Scorer    ranks the windows of one layer (larger score = keep)         | policies that route
//   Allocator splits the byte budget into per-layer tier quotas            | again and again
//   Selector  names the tokens that stay, head by head, after the prompt   | policies that do it
//   once
//
// A policy sees only the views below: never the graph, the kernels or the slabs. It declares the
// statistics it needs and only those are computed. Scorers are pure: same view, same scores.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/head_scores.h"
#include "kv/ladder.h"
#include "kv/prompt_view.h"
#include "kv/row_codec.h"
#include "kv/types.h"
#include "qevict/config.h"

namespace qevict {

struct Needs {
  bool mass = false;        // cumulative attention mass per window, mean over the query heads
  double mass_power = 1.0;  // attention^power is summed
  double mass_decay = 1.0;  // mass is multiplied by this at every decode step; 0: the last one only
  int prompt_rows = 0;      // only the last so many rows of a prompt add mass; 0: all of them
  bool key_norm = false;    // mean L2 norm of the window's keys over tokens and KV heads
  bool head_sums = false;   // sums of single query heads (LayerView::heads), in place of the mass
};

struct WindowView {
  WindowId id = 0;
  Tier tier = Tier::Local;  // where it is now; Local = has just aged out of the local zone
  float mass = 0.0F;
  float key_norm = 0.0F;
  RungId rung = kUnquantised;  // on a ladder, where the window is quantised
};

struct LayerView {
  int layer = 0;
  int n_layers = 0;
  TokenPos n_tokens = 0;                // appended so far
  std::span<const WindowView> windows;  // candidates, ascending id
  HeadView heads{};                     // of the same windows; where needed
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
  // In place of quota() with PolicySpec::ladder.
  virtual LadderQuota ladder(const BudgetPlan& plan, int layer, int n_layers) const { return {}; }
};

// What a selector reads of the prompt; only this is computed.
struct SelectorNeeds {
  int last_queries = 0;        // PromptView::q_last
  bool query_moments = false;  // PromptView::queries
  int moments_from = 0;        // first position whose query counts
  bool value_norms = false;
  bool mass = false;
  double mass_power = 1.0;  // attention^power is summed
  bool key_range = false;   // PromptRows::extremes, for whoever keeps a prompt for later
  int range_from = 0;       // first position that counts for them
};

// Chooses tokens once after the prompt (SnapKV and its kin). Heads may keep different numbers of
// tokens. Pure: same view, same tokens.
class Selector {
 public:
  virtual ~Selector() = default;
  virtual SelectorNeeds needs() const = 0;
  // Fewest tokens a head can keep (observation window and sinks): a smaller budget is raised to it.
  virtual int smallest_budget() const = 0;
  // n_kept: tokens that a KV head keeps on average over all layers; at least smallest_budget(), and
  // below what the heads of all layers hold on average. On a first prompt all hold equally many; on
  // an appended one a head may hold n_kept tokens or fewer, and can only keep those. `kept` comes
  // with one empty list a head.
  virtual void select(const PromptView& view, int n_kept, KeptTokens& kept) const = 0;

  // Policies that split the budget over layers by their scores are called with score() for each
  // layer and then once with all scores, in place of select().
  virtual bool over_layers() const { return false; }
  virtual void score(const PromptView& view, int n_kept, HeadScores& scores) const {}
  // scores, kept: [n_layers].
  virtual void select_over_layers(std::span<const HeadScores> scores, int n_kept,
                                  std::span<KeptTokens> kept) const {}
};

enum class Schedule : std::uint8_t {
  Never,        // the full cache
  EveryWindow,  // after the prompt and then every Omega decode steps
  Once,         // after the prompt only; generated tokens all stay
};

struct PolicySpec {
  std::string name;
  std::string paper;       // title or arXiv id
  std::string parameters;  // for `qevict policies`: "quant_share=0.7 window=8 ..."
  Schedule schedule = Schedule::EveryWindow;
  bool per_head = false;  // windows are routed by KV head, not by layer (always so with Once)
  // Quantised windows stand on the rungs of kRungs, nothing compressed stays in Full, and bits only
  // fall.
  bool ladder = false;
  // Checks CacheConfig::policy_parameters; empty: the policy has none of its own. What configure()
  // and make_...() are given has passed it.
  std::function<Status(const CacheConfig&)> check_parameters = {};
  // Sets what the policy fixes (window 1, no Quantized tier, ...), its own parameters included.
  // May be called again on its own result.
  std::function<void(CacheConfig&)> configure = {};
  // Never and EveryWindow only.
  std::function<std::unique_ptr<Scorer>(const CacheConfig&)> make_scorer = {};
  std::function<std::unique_ptr<Allocator>(const CacheConfig&)> make_allocator = {};
  std::function<std::unique_ptr<Selector>(const CacheConfig&)> make_selector = {};  // Once only
  // Of policies that quantise every token and evict none: one codec a layer holds all of its K and
  // V. With Never.
  std::function<std::unique_ptr<RowCodec>(const CodecContext&, const CacheConfig&)> make_codec = {};
};

// Makes a configuration, its parameters checked, the policy's: what whoever creates a cache calls
// before making the geometry (whose window comes from here). With Schedule::Once tokens are stored
// one by one; otherwise configure() decides.
void configure_policy(const PolicySpec& policy, CacheConfig& config);

}  // namespace qevict
