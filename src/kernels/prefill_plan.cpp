#include "kernels/prefill_plan.h"

#include <algorithm>

#include "base/math.h"

namespace qevict {
namespace {

int groups_a_panel(int omega) { return std::max(1, kPanelVectors / omega); }
int splits_a_group(int omega) { return ceil_div(omega, kPanelVectors); }

// Hands out consecutive 64-byte aligned parts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::uint8_t*>(base)) {}
  template <class T>
  T* take(std::size_t n) {
    T* part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (n * sizeof(T) + 63) / 64 * 64;
    return part;
  }
  std::size_t used() const { return used_; }

 private:
  std::uint8_t* base_;
  std::size_t used_ = 0;
};

}  // namespace

PrefillPlan::PrefillPlan(const PrefillParams& p)
    : full_(p.full),
      quantized_(p.quantized),
      omega_(p.geometry->window),
      groups_per_panel_(groups_a_panel(omega_)),
      splits_(splits_a_group(omega_)),
      nj_(ceil_div(omega_, splits_)),
      n_full_(p.n_full),
      n_quantized_(p.n_quantized),
      first_region_row_(p.n_sink_rows),
      visible_rows_(p.q_row0 + p.q_end),
      sink_rows_(std::min(p.n_sink_rows, visible_rows_)),
      region_windows_(ceil_div(visible_rows_ - sink_rows_, omega_)) {}

void PrefillPlan::rewind() { stage_ = group_ = split_ = index_ = 0; }

void PrefillPlan::fill_windows(PrefillPanel* panel, int n_groups, const GroupRef* groups,
                               int row0) {
  panel->index = index_++;
  panel->group = group_;
  panel->n_groups = std::min(groups_per_panel_, n_groups - group_);
  panel->j0 = split_ * nj_;
  panel->nj = std::min(nj_, omega_ - panel->j0);
  panel->n_vectors = panel->n_groups * panel->nj;
  panel->lane_stride = omega_;
  panel->lanes = 0;
  for (int i = 0; i < panel->n_groups; ++i) {
    const int group = group_ + i;
    const int lanes = groups != nullptr ? groups[group].lanes
                                        : std::min(kLanes, region_windows_ - group * kLanes);
    panel->lanes = std::max(panel->lanes, lanes);
    for (int j = 0; j < panel->nj; ++j) {
      panel->valid[i * panel->nj + j] = lanes;
      panel->row[i * panel->nj + j] = row0 + group * kLanes * omega_ + panel->j0 + j;
    }
  }
  if (++split_ == splits_) {
    split_ = 0;
    group_ += panel->n_groups;
  }
}

bool PrefillPlan::next(PrefillPanel* panel) {
  for (; stage_ < 4; ++stage_, group_ = 0, split_ = 0) {
    switch (static_cast<PanelKind>(stage_)) {
      case PanelKind::Full:
        if (group_ >= n_full_) continue;
        panel->kind = PanelKind::Full;
        fill_windows(panel, n_full_, full_, 0);
        return true;
      case PanelKind::Quantized:
        if (group_ >= n_quantized_) continue;
        panel->kind = PanelKind::Quantized;
        fill_windows(panel, n_quantized_, quantized_, 0);
        return true;
      case PanelKind::Sinks: {
        const int row0 = group_ * kPanelTokens;  // here group_ counts the sink panels
        if (row0 >= sink_rows_) continue;
        const int n = std::min(sink_rows_ - row0, kPanelTokens);
        *panel = {.kind = PanelKind::Sinks, .group = group_++};
        panel->n_vectors = panel->nj = ceil_div(n, kLanes);
        panel->lanes = std::min(n, kLanes);
        for (int v = 0; v < panel->n_vectors; ++v) panel->row[v] = row0 + v * kLanes;
        return true;
      }
      case PanelKind::Region:
        if (group_ >= region_groups()) continue;
        panel->kind = PanelKind::Region;
        fill_windows(panel, region_groups(), nullptr, first_region_row_);
        return true;
    }
  }
  return false;
}

std::size_t divide_prefill_scratch(void* base, const Geometry& g, int n_tokens, int n_full_groups,
                                   int n_quantized_groups, int n_rows, PrefillScratch* out) {
  const int omega = g.window;
  const int per_panel = groups_a_panel(omega);
  const int region_groups = ceil_div(n_rows, kLanes * omega);
  const std::size_t panels =
      static_cast<std::size_t>(splits_a_group(omega)) *
      (ceil_div(n_full_groups, per_panel) + ceil_div(n_quantized_groups, per_panel) +
       ceil_div(region_groups, per_panel));
  const std::size_t d = g.head_dim;
  const std::size_t d_pad = (d + 15) / 16 * 16;
  const std::size_t rows =
      ceil_div(n_tokens * g.group_size(), kMaxRowBlock) * std::size_t{kMaxRowBlock} + kMaxRowBlock;
  PrefillScratch s{};
  s.rows = static_cast<int>(rows);
  s.d_pad = static_cast<int>(d_pad);
  Carver carver(base);
  s.q = carver.take<float>(rows * d);
  s.o = carver.take<float>(rows * d_pad);
  s.l = carver.take<float>(rows * kLanes);
  s.m = carver.take<float>(rows);
  s.k = carver.take<float>((kPanelTokens + kMaxBlockFloats) * d);
  s.v = carver.take<float>(kPanelTokens * (d_pad + kMaxBlockFloats));
  s.s = carver.take<float>(std::size_t{kChunkRows} * kPanelTokens);
  s.turn = carver.take<float>(omega * d);
  s.window = carver.take<float>(panels * per_panel * rows * kLanes);
  s.m_window = carver.take<float>(panels * rows);
  s.zero_row = carver.take<fp16_t>(d);
  const std::size_t depth = ceil_div(g.head_dim, kTileDepth);
  for (int part = 0; part < 2; ++part) {
    s.products.q[part] = carver.take<bf16_t>(rows * depth * kTileDepth);
    s.products.k[part] = carver.take<bf16_t>(kPanelTokens * depth * kTileDepth);
    s.products.v[part] = carver.take<bf16_t>(kPanelTokens * d_pad);
    s.products.p[part] = carver.take<bf16_t>(std::size_t{kChunkRows} * kPanelTokens);
  }
  *out = s;
  return carver.used();
}

std::size_t prefill_scratch_bytes(const Geometry& g, int n_full_groups, int n_quantized_groups,
                                  int n_rows) {
  PrefillScratch parts{};
  return divide_prefill_scratch(nullptr, g, kPrefillTile, n_full_groups, n_quantized_groups, n_rows,
                                &parts);
}

}  // namespace qevict
