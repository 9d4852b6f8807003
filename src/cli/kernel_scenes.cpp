#include "cli/kernel_scenes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>

#include "kernels/codec.h"

namespace qevict::cli {
namespace {

constexpr int kItemGroups = 4;  // as in attention/step_attention.cpp
constexpr int kPatterns = 4;    // different groups; the others are copies

void set_grids(Geometry& g, int bits, GridFormat keys) {
  g.quant_bits = bits;
  g.key_grid = keys;
  g.value_grid = GridFormat::U8;
}

constexpr TierFormat kTierFormats[] = {
    {"full", false, [](Geometry&) {}},
    {"int2", true, [](Geometry& g) { g.quant_bits = 2; }},
    {"int3", true, [](Geometry& g) { g.quant_bits = 3; }},
    {"int4", true, [](Geometry& g) { g.quant_bits = 4; }},
    {"int8", true, [](Geometry& g) { g.quant_bits = 8; }},
    {"int2_u8", true, [](Geometry& g) { set_grids(g, 2, GridFormat::U8); }},
    {"int2_u4", true, [](Geometry& g) { set_grids(g, 2, GridFormat::U4); }},
    {"int3_u8", true, [](Geometry& g) { set_grids(g, 3, GridFormat::U8); }},
    {"int4_u8", true, [](Geometry& g) { set_grids(g, 4, GridFormat::U8); }},
};

std::uint8_t* allocate(std::size_t bytes) {
  auto* p = static_cast<std::uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

template <typename T>
void fill_normal(std::vector<T>& x, std::size_t n, float scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  x.resize(n);
  for (T& item : x) {
    const float value = scale * normal(random);
    if constexpr (sizeof(T) == sizeof(fp16_t)) {
      item = fp32_to_fp16(value);
    } else {
      item = value;
    }
  }
}

}  // namespace

std::span<const TierFormat> tier_formats() { return kTierFormats; }

Geometry KernelShape::geometry(const TierFormat& format) const {
  Geometry g;
  g.n_heads = group * n_kv_heads;
  g.n_kv_heads = n_kv_heads;
  g.head_dim = head_dim;
  format.apply(g);
  return g;
}

void TierScene::Free::operator()(std::uint8_t* p) const noexcept { std::free(p); }

TierScene::TierScene(const KernelShape& shape, const TierFormat& format, std::size_t bytes)
    : format_(format),
      g_(shape.geometry(format)),
      rope_(RopeSpec::plain(g_.pairing, g_.head_dim, 1e6)) {
  const std::size_t window_bytes =
      format.quantized ? g_.quantized_window_bytes() : g_.full_window_bytes();
  const std::size_t group_bytes = window_bytes * kLanes;
  // A cache that is larger than what is asked for becomes smaller: the data shall stay in the
  // caches.
  const std::size_t item_bytes = group_bytes * kItemGroups;
  const auto wanted = static_cast<std::size_t>(shape.tokens / (g_.window * kLanes));
  groups_per_cache_ =
      std::min(wanted, bytes / item_bytes * kItemGroups) / kItemGroups * kItemGroups;
  groups_per_cache_ = std::max<std::size_t>(groups_per_cache_, kItemGroups);
  const std::size_t n_caches = std::max<std::size_t>(
      1, (bytes + groups_per_cache_ * group_bytes - 1) / (groups_per_cache_ * group_bytes));

  const int windows = static_cast<int>(groups_per_cache_) * kLanes;
  phases_ = WindowPhases(rope_, 5, g_.window, windows);
  for (int w = 0; w < windows; ++w) windows_.push_back(w);
  std::vector<fp16_t> k;
  std::vector<fp16_t> v;
  std::vector<std::uint8_t> block(g_.quantized_window_bytes());
  std::vector<float> scratch(quantize_scratch_floats(g_));
  const std::size_t rows = static_cast<std::size_t>(g_.n_kv_heads) * g_.window * g_.head_dim;
  // Wide enough for normal values; used by formats whose grids are integers.
  for (int i = 0; i < g_.n_kv_heads * 2 * g_.head_dim; ++i) {
    range_keys_.push_back(fp32_to_fp16(i / g_.head_dim % 2 == 0 ? -5.0F : 10.0F));
  }
  for (int i = 0; i < g_.n_kv_heads * 2; ++i) {
    range_values_.push_back(fp32_to_fp16(i % 2 == 0 ? -5.0F : 10.0F));
  }
  for (std::size_t i = 0; i < n_caches * groups_per_cache_; ++i) {
    buffers_.emplace_back(allocate(group_bytes));
    std::uint8_t* data = buffers_.back().get();
    groups_.push_back({data, kLanes});
    if (i >= kPatterns) {
      std::memcpy(data, groups_[i % kPatterns].data, group_bytes);
      continue;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto seed = static_cast<unsigned>(2 * (i * kLanes + lane));
      fill_normal(k, rows, 1.0F, seed);
      fill_normal(v, rows, 1.0F, seed + 1);
      if (format.quantized) {
        quantize_window(g_, rope_, 0, k.data(), v.data(), block.data(), scratch.data(), range());
        quant_group_store(g_, data, kLanes, lane, block.data());
      } else {
        full_group_store(g_, data, kLanes, lane, k.data(), v.data());
      }
    }
  }
  bytes_ = groups_.size() * group_bytes;

  const std::size_t heads = g_.group_size();
  fill_normal(q_, heads * g_.head_dim, 1.0F / std::sqrt(static_cast<float>(g_.head_dim)), 99);
  q_back_.resize(query_back_floats(g_));
  cos_.resize(static_cast<std::size_t>(g_.window) * g_.head_dim / 2);
  sin_.resize(cos_.size());
  for (int j = 0; j < g_.window; ++j) {
    rope_angles(rope_, j, &cos_[static_cast<std::size_t>(j) * g_.head_dim / 2],
                &sin_[static_cast<std::size_t>(j) * g_.head_dim / 2]);
  }
  item_phases_.resize(static_cast<std::size_t>(kItemGroups) * g_.head_dim * kLanes);
  o_.resize(heads * g_.head_dim);
  m_.resize(heads);
  l_.resize(heads);
  window_sum_.resize(kItemGroups * heads * kLanes);
  group_max_.resize(kItemGroups * heads);
}

double TierScene::token_heads() const {
  return static_cast<double>(groups_.size()) * kLanes * g_.window * g_.n_kv_heads;
}

void TierScene::phases_of_item(const KernelTable& kernels, std::size_t first) {
  for (std::size_t i = first; i < first + kItemGroups; ++i) {
    kernels.window_phases(phases_, windows_.data() + i % groups_per_cache_ * kLanes, kLanes,
                          item_phases_.data() + (i - first) * g_.head_dim * kLanes);
  }
}

void TierScene::compute_phases(const KernelTable& kernels) {
  if (!format_.quantized) return;
  for (std::size_t i = 0; i < groups_.size(); i += kItemGroups) phases_of_item(kernels, i);
}

void TierScene::attend(const KernelTable& kernels) {
  const SoftmaxState state{o_.data(), m_.data(), l_.data()};
  const GroupMass mass{window_sum_.data(), group_max_.data(), 1.0F};
  if (format_.quantized) {
    kernels.rotate_queries_back(g_, q_.data(), cos_.data(), sin_.data(), q_back_.data());
  }
  for (std::size_t i = 0; i < groups_.size(); i += kItemGroups) {
    if (format_.quantized) phases_of_item(kernels, i);
    for (int head = 0; head < g_.n_kv_heads; ++head) {
      softmax_reset(state, g_.group_size(), g_.head_dim);
      if (format_.quantized) {
        AttendQuantizedParams p;
        p.geometry = &g_;
        p.kv_head = head;
        p.q_back = q_back_.data();
        p.range = range();
        p.phases = item_phases_.data();
        p.groups = groups_.data() + i;
        p.n_groups = kItemGroups;
        p.state = state;
        p.mass = mass;
        kernels.attend_quantized(p);
      } else {
        AttendFullParams p;
        p.geometry = &g_;
        p.kv_head = head;
        p.q = q_.data();
        p.groups = groups_.data() + i;
        p.n_groups = kItemGroups;
        p.state = state;
        p.mass = mass;
        kernels.attend_full(p);
      }
    }
  }
}

PromptScene::PromptScene(const KernelShape& shape, int tokens)
    : g_(shape.geometry(kTierFormats[0])),
      rope_(RopeSpec::plain(g_.pairing, g_.head_dim, 1e6)),
      tokens_(tokens),
      scratch_(nullptr, [](std::uint8_t* p) { std::free(p); }) {
  g_.n_heads = g_.group_size();
  g_.n_kv_heads = 1;
  const auto n = static_cast<std::size_t>(tokens) * g_.head_dim;
  fill_normal(k_, n, 1.0F, 1);
  fill_normal(v_, n, 1.0F, 2);
  fill_normal(q_, n * g_.n_heads, 1.0F, 3);
  out_.resize(q_.size());
  mass_.resize(static_cast<std::size_t>(g_.n_heads) * (tokens / g_.window + 2 * kLanes));
  scratch_.reset(allocate(prefill_scratch_bytes(g_, 0, 0, tokens)));
}

void PromptScene::attend(const KernelTable& kernels) {
  PrefillParams p;
  p.geometry = &g_;
  p.q = q_.data();
  p.out = out_.data();
  p.scale = 1.0F / std::sqrt(static_cast<float>(g_.head_dim));
  p.k_rows = k_.data();
  p.v_rows = v_.data();
  p.rope = &rope_;
  p.mass = mass_.data();
  p.mass_stride = static_cast<std::ptrdiff_t>(mass_.size() / g_.n_heads);
  p.scratch = scratch_.get();
  for (p.q_begin = 0; p.q_begin < tokens_; p.q_begin = p.q_end) {
    p.q_end = std::min(p.q_begin + kPrefillTile, tokens_);
    kernels.prefill_tile(p);
  }
}

double PromptScene::flops() const {
  return 4.0 * g_.head_dim * g_.n_heads * 0.5 * tokens_ * (tokens_ + 1.0);
}

void StreamScene::read() {
  // Looking for a byte that is not there: the library's loop uses the widest vectors there are.
  found_ += std::memchr(data_.data(), 2, data_.size()) != nullptr ? 1 : 0;
}

}  // namespace qevict::cli
