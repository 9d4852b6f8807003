// Fills the views that a cache is given from a snapshot.
#include "engine/prompt_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace qevict {

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
      find_probes() && has.last_queries >= wanted.last_queries && (!wanted.mass || has.mass) &&
      (!wanted.mass || has.mass_power == wanted.mass_power) &&
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
  fill_probes(from);
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

// Once for all layers: which rows a codec draws hangs on the tokens it holds already, and a filled
// layer's holds the prompt. False when the snapshot lacks a row.
bool SnapshotReader::find_probes() {
  probe_rows_.clear();
  if (cache_.codec(0) != nullptr) probe_rows_ = cache_.codec(0)->probe_rows(prompt_.n_tokens_);
  return std::ranges::all_of(
      probe_rows_, [&](int row) { return std::ranges::binary_search(prompt_.probes_, row); });
}

void SnapshotReader::fill_probes(const PromptSnapshot::Layer& from) {
  const auto width =
      static_cast<std::ptrdiff_t>(cache_.geometry().n_heads) * cache_.geometry().head_dim;
  q_probe_.clear();
  for (const int row : probe_rows_) {
    const auto at = std::ranges::lower_bound(prompt_.probes_, row) - prompt_.probes_.begin();
    const float* q = from.q_probe.data() + at * width;
    q_probe_.insert(q_probe_.end(), q, q + width);
  }
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
        add_head_sums(from, u * heads + h, h, mass);
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

// records: [windows][2][heads of the unit], where the head is number `at`.
void SnapshotReader::add_head_sums(const PromptSnapshot::Layer& from, int head, int at,
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
    record[at] += std::max(0.0, sums_[static_cast<std::size_t>(t)] - recent);
    record[heads + static_cast<std::size_t>(at)] += recent;
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
