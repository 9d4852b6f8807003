// Computes a prompt once and keeps what any policy may read of it.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <set>

#include "engine/prompt_snapshot.h"
#include "policies/registry.h"

namespace qevict {
namespace {

constexpr int kAll = std::numeric_limits<int>::max();

// Has the attention collect what a snapshot keeps; never asked to select.
class CaptureSelector final : public Selector {
 public:
  explicit CaptureSelector(const CaptureOptions& o)
      : needs_{.last_queries = o.quantisers.empty() ? o.last_queries : kAll,
               .query_moments = o.query_moments,
               .moments_from = o.moments_from,
               .mass = o.mass,
               .mass_power = o.mass_power,
               .key_range = o.key_range,
               .range_from = o.range_from} {}
  SelectorNeeds needs() const override { return needs_; }
  int smallest_budget() const override { return 1; }
  void select(const PromptView&, int, KeptTokens&) const override {}

 private:
  SelectorNeeds needs_;
};

PolicySpec capture_policy(const CaptureOptions& options) {
  PolicySpec policy;
  policy.name = "capture";
  policy.schedule = Schedule::Once;
  policy.make_selector = [options](const CacheConfig&) {
    return std::make_unique<CaptureSelector>(options);
  };
  return policy;
}

template <typename T>
std::vector<T> copy(const T* from, std::size_t n) {
  return from == nullptr ? std::vector<T>() : std::vector<T>(from, from + n);
}

template <typename T>
std::size_t bytes_of(const std::vector<T>& x) {
  return x.size() * sizeof(T);
}

}  // namespace

CaptureOptions needs_of(const Needs& needs, const SelectorNeeds& select, bool ladder, int n_sink) {
  CaptureOptions options;
  // Mass of the last rows alone is computed again from their queries.
  options.last_queries = std::max({select.last_queries, needs.mass ? needs.prompt_rows : 0,
                                   needs.head_sums ? kRecentPromptRows : 0});
  options.key_range = ladder;
  options.range_from = ladder ? n_sink : 0;
  options.query_moments = select.query_moments;
  options.moments_from = select.moments_from;
  options.mass = select.mass || (needs.mass && needs.prompt_rows == 0) || needs.head_sums;
  if (options.mass) options.mass_power = select.mass ? select.mass_power : needs.mass_power;
  return options;
}

Result<CaptureOptions> CaptureOptions::covering(std::span<const CacheConfig> configs) {
  CaptureOptions all;
  for (CacheConfig config : configs) {
    const Result<const PolicySpec*> policy = require_policy(config);
    if (!policy) return std::unexpected(policy.error());
    configure_policy(**policy, config);
    if ((*policy)->make_codec) {
      all.quantisers.push_back(config);
      continue;
    }
    const bool once = (*policy)->schedule == Schedule::Once;
    const CaptureOptions one =
        needs_of(once ? Needs() : (*policy)->make_scorer(config)->needs(),
                 once ? (*policy)->make_selector(config)->needs() : SelectorNeeds(),
                 (*policy)->ladder, config.n_sink);
    if ((one.key_range && all.key_range && one.range_from != all.range_from) ||
        (one.mass && all.mass && one.mass_power != all.mass_power) ||
        (one.query_moments && all.query_moments && one.moments_from != all.moments_from)) {
      return bad_input(fmt::format(
          "policy {} reads another power of the attention, or moments or ranges from another "
          "position, than the others (policies): its prompt cannot be captured together with "
          "theirs",
          config.policy));
    }
    all.last_queries = std::max(all.last_queries, one.last_queries);
    if (one.query_moments) all.moments_from = one.moments_from;
    if (one.mass) all.mass_power = one.mass_power;
    all.query_moments |= one.query_moments;
    all.mass |= one.mass;
    if (one.key_range) all.range_from = one.range_from;
    all.key_range |= one.key_range;
  }
  return all;
}

std::size_t PromptSnapshot::bytes() const {
  std::size_t sum = bytes_of(logits_);
  for (const Layer& layer : layers_) {
    sum += bytes_of(layer.k) + bytes_of(layer.v) + bytes_of(layer.q_last) +
           bytes_of(layer.q_probe) + bytes_of(layer.mean) + bytes_of(layer.covariance) +
           bytes_of(layer.extremes);
    for (const auto& head : layer.mass) sum += bytes_of(head);
    for (const auto& head : layer.value_norms) sum += bytes_of(head);
  }
  return sum;
}

namespace {

// Rows of a prompt of n tokens whose queries the quantisers look at.
Result<std::vector<int>> probe_rows(const HParams& hp, const CaptureOptions& options, int n) {
  std::set<int> rows;
  for (const CacheConfig& config : options.quantisers) {
    const Result<const PolicySpec*> policy = require_policy(config);
    if (!policy) return std::unexpected(policy.error());
    const auto cache = KvCache::create(make_geometry(hp, config), 1, hp.rope, config, **policy);
    if (!cache) return std::unexpected(cache.error());
    const std::vector<int> wanted = (*cache)->codec(0)->probe_rows(n);
    rows.insert(wanted.begin(), wanted.end());
  }
  return std::vector<int>(rows.begin(), rows.end());
}

}  // namespace

void PromptSnapshot::keep(const PromptRows& rows, const PromptQueries& queries, const Geometry& g) {
  QE_CHECK(rows.capacity == n_tokens_);  // the heads' rows follow each other
  const auto heads = static_cast<std::size_t>(g.n_heads);
  const auto dim = static_cast<std::size_t>(g.head_dim);
  const auto n = static_cast<std::size_t>(n_tokens_);
  Layer& layer = layers_.emplace_back();
  layer.k = copy(rows.k, static_cast<std::size_t>(g.n_kv_heads) * n * dim);
  layer.v = copy(rows.v, static_cast<std::size_t>(g.n_kv_heads) * n * dim);
  layer.mean = copy(queries.moments.mean, heads * dim);
  layer.covariance = copy(queries.moments.covariance, heads * dim * dim);
  layer.n_queries = queries.moments.n_queries;
  layer.extremes =
      copy(rows.extremes, static_cast<std::size_t>(g.n_kv_heads) * head_extreme_floats(g));
  for (const std::span<const double> sums : queries.mass) {
    layer.mass.emplace_back(sums.begin(), sums.end());
  }
  n_last_ = std::min(options_.last_queries, n_tokens_);
  const auto held = static_cast<std::size_t>(queries.n_last);
  for (std::size_t h = 0; h < heads; ++h) {
    const float* end = queries.q_last + (h + 1) * held * dim;
    layer.q_last.insert(layer.q_last.end(), end - static_cast<std::size_t>(n_last_) * dim, end);
  }
  for (const int row : probes_) {
    for (std::size_t h = 0; h < heads; ++h) {
      const float* q = queries.q_last + (h * held + static_cast<std::size_t>(row)) * dim;
      layer.q_probe.insert(layer.q_probe.end(), q, q + dim);
    }
  }
}

Result<std::shared_ptr<const PromptSnapshot>> capture_prompt(const SessionContext& context,
                                                             std::span<const TokenId> tokens,
                                                             const CaptureOptions& options) {
  const HParams& hp = context.model->hparams();
  if (tokens.empty()) return bad_input("the prompt is empty (prompt): give at least one token");
  if (tokens.size() > static_cast<std::size_t>(context.ctx_size)) {
    return bad_input(
        fmt::format("the prompt is longer than the context ({} tokens, context {}): "
                    "shorten the prompt or raise --ctx-size",
                    tokens.size(), context.ctx_size));
  }
  const PolicySpec policy = capture_policy(options);
  CacheConfig config;
  configure_policy(policy, config);
  try {
    auto cache = KvCache::create(make_geometry(hp, config), hp.n_layers, hp.rope, config, policy);
    if (!cache) return std::unexpected(cache.error());
    TieredAttention attention(**cache, active_kernels(), context.forward->n_threads());
    auto prompt = std::make_shared<PromptSnapshot>();
    prompt->model_ = context.model;
    prompt->options_ = options;
    prompt->options_.progress = nullptr;
    prompt->options_.cancel = nullptr;
    prompt->n_tokens_ = static_cast<int>(tokens.size());
    auto probes = probe_rows(hp, options, prompt->n_tokens_);
    if (!probes) return std::unexpected(probes.error());
    prompt->probes_ = std::move(*probes);
    if (Status s = (*cache)->begin_prompt(prompt->n_tokens_, 0); !s) {
      return std::unexpected(s.error());
    }
    const auto keep = [&](int) -> Status {
      const TieredAttention::PromptLayer& done = attention.prompt_layer();
      prompt->keep(done.rows, done.queries, attention.geometry());
      return {};
    };
    GenerateOptions pass;
    pass.prefill_progress = options.progress;
    pass.cancel = options.cancel;
    std::vector<float> last_hidden(static_cast<std::size_t>(hp.n_embd));
    std::size_t workspace = 0;
    if (Status s = run_prompt_layers(context, attention, tokens, pass, keep, last_hidden.data(),
                                     workspace);
        !s) {
      return std::unexpected(s.error());
    }
    prompt->logits_.resize(static_cast<std::size_t>(hp.n_vocab));
    if (Status s = context.forward->head(last_hidden.data(), prompt->logits_.data()); !s) {
      return std::unexpected(s.error());
    }
    if (Status s = check_finite(prompt->logits_); !s) return std::unexpected(s.error());
    context.forward->release_prompt_workspace();
    return prompt;
  } catch (const std::bad_alloc&) {
    return runtime_error(fmt::format(
        "out of memory ({} captured prompt tokens): shorten the prompt", tokens.size()));
  }
}

}  // namespace qevict
