#include "engine/prompt_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <set>

#include "kernels/codec.h"
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

// What a scorer or a selector reads, in the terms of a capture. ladder: the policy has one, and so
// many sinks.
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

template <typename T>
std::vector<T> copy(const T* from, std::size_t n) {
  return from == nullptr ? std::vector<T>() : std::vector<T>(from, from + n);
}

template <typename T>
std::size_t bytes_of(const std::vector<T>& x) {
  return x.size() * sizeof(T);
}

}  // namespace

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
  layer.extremes = copy(rows.extremes, range_extreme_floats(g));
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

SnapshotReader::SnapshotReader(const PromptSnapshot& prompt, const KvCache& cache)
    : prompt_(prompt), cache_(cache) {}

Status SnapshotReader::check(const Model& model) {
  if (prompt_.model_ != &model) {
    return bad_input(
        "the snapshot was made by another engine (snapshot): capture the prompt again");
  }
  const CaptureOptions wanted =
      needs_of(cache_.needs(), cache_.selector_needs(), cache_.ladder(), cache_.config().n_sink);
  const CaptureOptions& has = prompt_.options_;
  const bool enough =
      fill_probes(nullptr) && has.last_queries >= wanted.last_queries &&
      (!wanted.mass || has.mass) && (!wanted.mass || has.mass_power == wanted.mass_power) &&
      (!wanted.key_range || (has.key_range && has.range_from == wanted.range_from)) &&
      (!wanted.query_moments || (has.query_moments && has.moments_from == wanted.moments_from));
  if (enough) return {};
  return bad_input(
      fmt::format("the snapshot lacks what policy {} reads (snapshot): capture it with "
                  "CaptureOptions::covering() of all configurations",
                  cache_.config().policy));
}

Result<SnapshotReader::LayerInput> SnapshotReader::layer(int layer, const ValueNorms& norms) {
  const PromptSnapshot::Layer& from = prompt_.layers_[static_cast<std::size_t>(layer)];
  const int n = prompt_.n_tokens_;
  LayerInput input;
  PromptRows& rows = input.rows;
  rows.k = from.k.data();
  rows.v = from.v.data();
  rows.n_rows = rows.capacity = n;
  rows.n_sink_rows = std::min(cache_.config().n_sink, n);
  rows.region_begin = cache_.config().n_sink;
  if (cache_.ladder()) rows.extremes = from.extremes.data();
  fill_unit_mass(from);
  input.mass = unit_views_;
  const SelectorNeeds& needs = cache_.selector_needs();
  PromptQueries& queries = input.queries;
  fill_last_queries(from);
  queries.n_last = std::min(needs.last_queries, prompt_.n_last_);
  queries.q_last = q_last_.data();
  fill_probes(&from);
  queries.probes = {probe_rows_, q_probe_.data()};
  if (needs.query_moments) {
    queries.moments = {from.mean.data(), from.covariance.data(), from.n_queries};
  }
  if (needs.mass) {
    mass_views_.assign(from.mass.begin(), from.mass.end());
    queries.mass = mass_views_;
  }
  if (needs.value_norms) {
    if (Status s = fill_value_norms(from, layer, norms); !s) return std::unexpected(s.error());
    norm_views_.assign(from.value_norms.begin(), from.value_norms.end());
    queries.value_norms = norm_views_;
  }
  return input;
}

void SnapshotReader::fill_last_queries(const PromptSnapshot::Layer& from) {
  const auto dim = static_cast<std::ptrdiff_t>(cache_.geometry().head_dim);
  const std::ptrdiff_t held = prompt_.n_last_;
  const std::ptrdiff_t n = std::min(cache_.selector_needs().last_queries, prompt_.n_last_);
  q_last_.clear();
  for (std::ptrdiff_t h = 0; h < cache_.geometry().n_heads; ++h) {
    const float* end = from.q_last.data() + (h + 1) * held * dim;
    q_last_.insert(q_last_.end(), end - n * dim, end);
  }
}

// False when the snapshot lacks a row. from: null: only looks.
bool SnapshotReader::fill_probes(const PromptSnapshot::Layer* from) {
  probe_rows_.clear();
  q_probe_.clear();
  if (cache_.codec(0) == nullptr) return true;
  probe_rows_ = cache_.codec(0)->probe_rows(prompt_.n_tokens_);
  const auto width =
      static_cast<std::ptrdiff_t>(cache_.geometry().n_heads) * cache_.geometry().head_dim;
  for (const int row : probe_rows_) {
    const auto at = std::ranges::lower_bound(prompt_.probes_, row);
    if (at == prompt_.probes_.end() || *at != row) return false;
    if (from == nullptr) continue;
    const float* q = from->q_probe.data() + (at - prompt_.probes_.begin()) * width;
    q_probe_.insert(q_probe_.end(), q, q + width);
  }
  return true;
}

void SnapshotReader::head_mass(const PromptSnapshot::Layer& from, int head, int counted,
                               std::vector<double>& sums) const {
  counted = std::min(counted, prompt_.n_tokens_);
  if (counted == 0) {
    sums = from.mass[static_cast<std::size_t>(head)];
    return;
  }
  const Geometry& g = cache_.geometry();
  const int n = prompt_.n_tokens_;
  const std::ptrdiff_t dim = g.head_dim;
  const fp16_t* keys = from.k.data() + static_cast<std::ptrdiff_t>(head / g.group_size()) * n * dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  sums.assign(static_cast<std::size_t>(n), 0.0);
  std::vector<double> p(static_cast<std::size_t>(n));
  for (int row = n - counted; row < n; ++row) {
    const int at = row - (n - prompt_.n_last_);
    const float* q =
        from.q_last.data() + (static_cast<std::ptrdiff_t>(head) * prompt_.n_last_ + at) * dim;
    double max = -HUGE_VAL;
    for (int t = 0; t <= row; ++t) {
      double dot = 0.0;
      for (std::ptrdiff_t c = 0; c < dim; ++c) dot += q[c] * fp16_to_fp32(keys[t * dim + c]);
      p[static_cast<std::size_t>(t)] = dot * scale;
      max = std::max(max, dot * scale);
    }
    double total = 0.0;
    for (int t = 0; t <= row; ++t) {
      total += p[static_cast<std::size_t>(t)] = std::exp(p[static_cast<std::size_t>(t)] - max);
    }
    for (int t = 0; t <= row; ++t) {
      sums[static_cast<std::size_t>(t)] +=
          std::pow(p[static_cast<std::size_t>(t)] / total, cache_.needs().mass_power);
    }
  }
}

void SnapshotReader::fill_unit_mass(const PromptSnapshot::Layer& from) {
  const int units = cache_.units_per_layer();
  unit_views_.assign(static_cast<std::size_t>(units), PromptMass());
  const bool head_sums = cache_.needs().head_sums;
  if (!cache_.needs().mass && !head_sums) return;
  const int window = cache_.geometry().window;
  const int n_sink = cache_.config().n_sink;
  const int heads = cache_.unit_geometry().n_heads;
  const int n_windows = (std::max(0, prompt_.n_tokens_ - n_sink) + window - 1) / window;
  unit_mass_.resize(static_cast<std::size_t>(units));
  for (int u = 0; u < units; ++u) {
    std::vector<double>& mass = unit_mass_[static_cast<std::size_t>(u)];
    mass.assign(static_cast<std::size_t>(n_windows) * (head_sums ? head_record_floats(heads) : 1),
                0.0);
    for (int h = 0; h < heads; ++h) {
      if (head_sums) {
        add_head_sums(from, u * heads + h, mass);
        continue;
      }
      head_mass(from, u * heads + h, cache_.needs().prompt_rows, sums_);
      for (int t = n_sink; t < prompt_.n_tokens_; ++t) {
        mass[static_cast<std::size_t>((t - n_sink) / window)] +=
            sums_[static_cast<std::size_t>(t)] / heads;
      }
    }
    unit_views_[static_cast<std::size_t>(u)].region = mass;
  }
}

// records: [windows][2][n_heads], of whole layers.
void SnapshotReader::add_head_sums(const PromptSnapshot::Layer& from, int head,
                                   std::vector<double>& records) {
  const int n_sink = cache_.config().n_sink;
  const int window = cache_.geometry().window;
  const auto heads = static_cast<std::size_t>(cache_.unit_geometry().n_heads);
  head_mass(from, head, 0, sums_);
  head_mass(from, head, kRecentPromptRows, recent_sums_);
  for (int t = n_sink; t < prompt_.n_tokens_; ++t) {
    double* record = records.data() + static_cast<std::size_t>((t - n_sink) / window) *
                                          head_record_floats(cache_.unit_geometry().n_heads);
    const double recent = recent_sums_[static_cast<std::size_t>(t)];
    record[head] += std::max(0.0, sums_[static_cast<std::size_t>(t)] - recent);
    record[heads + static_cast<std::size_t>(head)] += recent;
  }
}

Status SnapshotReader::fill_value_norms(const PromptSnapshot::Layer& from, int layer,
                                        const ValueNorms& norms) {
  if (!from.value_norms.empty()) return {};
  if (!norms) {
    return runtime_error(fmt::format(
        "policy {} needs the model's output projection, which this session was not given",
        cache_.config().policy));
  }
  const Geometry& g = cache_.geometry();
  const std::size_t n = static_cast<std::size_t>(prompt_.n_tokens_);
  std::vector<std::vector<float>> all(static_cast<std::size_t>(g.n_heads), std::vector<float>(n));
  std::vector<float> v(n * static_cast<std::size_t>(g.head_dim));
  for (int h = 0; h < g.n_heads; ++h) {
    const fp16_t* values = from.v.data() + static_cast<std::size_t>(h / g.group_size()) * v.size();
    if (h % g.group_size() == 0) {
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = fp16_to_fp32(values[i]);
    }
    if (Status s =
            norms(layer, h, v.data(), prompt_.n_tokens_, all[static_cast<std::size_t>(h)].data());
        !s) {
      return s;
    }
  }
  from.value_norms = std::move(all);
  return {};
}

}  // namespace qevict
