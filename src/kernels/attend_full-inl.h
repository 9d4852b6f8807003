// Decode attention over Full groups and over the recent zone: both are fp16 keys with 16 tokens of
// equal channel next to each other.
#if defined(QEVICT_KERNELS_ATTEND_FULL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_ATTEND_FULL_INL_H_
#undef QEVICT_KERNELS_ATTEND_FULL_INL_H_
#else
#define QEVICT_KERNELS_ATTEND_FULL_INL_H_
#endif

#include <cstring>

#include "kernels/attend_common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// One group of windows, or a round of recent tokens, and one block of query heads.
struct Fp16Work {
  const fp16_t* k;  // strides of a block and of a channel
  std::ptrdiff_t stride_b, stride_c;
  const fp16_t* v;
  TokenWalk walk;
  int n_blocks, lanes, dim;
  std::ptrdiff_t ahead;  // bytes to the data that will be wanted next
  const float* q;        // packed
  HeadState state;
  HeadMass mass;
  float* score_out;  // the scores as they are, [H][score_stride]; null: not wanted
  std::ptrdiff_t score_stride;

  template <int H>
  void run() const {
    HWY_ALIGN float s[kMaxWindow * H * kLanes];
    HWY_ALIGN float shrink[kLanes];
    score_all<H>(k, n_blocks, stride_b, stride_c, dim, q, ahead, s);
    if (lanes < kLanes) mask_lanes<H>(n_blocks, lanes, s);
    if (score_out != nullptr) copy_scores<H>(s);
    softmax_group<H>(s, n_blocks, state, mass, KeepWeights(), shrink);
    add_all_values<H>(v, walk, dim, ahead, s, shrink, state);
  }

  template <int H>
  void copy_scores(const float* s) const {
    for (int b = 0; b < n_blocks; ++b) {
      for (int h = 0; h < H; ++h) {
        std::memcpy(score_out + h * score_stride + b * kLanes, s + (b * H + h) * kLanes,
                    kLanes * sizeof(float));
      }
    }
  }
};

// Rows of 16 fp16 are read whole. In a group with fewer lanes a row runs on into what follows it,
// which for the last rows of K is V; only where V is shorter than a row is a padded copy needed.
inline constexpr std::size_t kRowBytes = kLanes * sizeof(fp16_t);
inline constexpr std::size_t kPaddedBytes = 256;

// Query heads whose packed queries are on the stack at a time; more are done in another sweep.
inline constexpr int kSweepHeads = 16;

struct FullSweep {
  const AttendFullParams& p;
  int first_head, n_heads;

  void run() const {
    const Geometry& g = *p.geometry;
    const int dim = g.head_dim;
    const HeadBlocks blocks(n_heads);
    HWY_ALIGN float q[kSweepHeads * kMaxHeadDim];
    for (int b = 0; b < blocks.n_blocks; ++b) {
      pack_queries(p.q + static_cast<std::ptrdiff_t>(first_head + blocks.first(b)) * dim,
                   blocks.count(b), dim, q + blocks.first(b) * dim);
    }
    for (int i = 0; i < p.n_groups; ++i) group(i, blocks, q);
  }

  void group(int i, const HeadBlocks& blocks, const float* q) const {
    const Geometry& g = *p.geometry;
    const std::ptrdiff_t dim = g.head_dim;
    const std::ptrdiff_t window = g.window;
    const GroupRef& group = p.groups[i];
    const std::size_t items = static_cast<std::size_t>(window * dim * group.lanes);
    const fp16_t* k = reinterpret_cast<const fp16_t*>(group.data) + 2 * items * p.kv_head;
    const fp16_t* v = k + items;
    HWY_ALIGN std::uint8_t padded[kPaddedBytes];
    if (items * sizeof(fp16_t) < kRowBytes) {
      std::memcpy(padded, k, items * sizeof(fp16_t));
      k = reinterpret_cast<const fp16_t*>(padded);
    }
    const std::ptrdiff_t ahead = i + 1 < p.n_groups ? p.groups[i + 1].data - group.data : 0;
    for (int b = 0; b < blocks.n_blocks; ++b) {
      const std::ptrdiff_t head = first_head + blocks.first(b);
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(i) * g.group_size() + head;
      Fp16Work work{};
      work.k = k;
      work.stride_b = dim * group.lanes;
      work.stride_c = group.lanes;
      work.v = v;
      work.walk = {group.lanes, static_cast<int>(window), window * dim, dim, true};
      work.n_blocks = g.window;
      work.lanes = group.lanes;
      work.dim = g.head_dim;
      work.ahead = ahead;
      work.q = q + blocks.first(b) * dim;
      work.state = {p.state.o + head * dim, dim, p.state.m + head, p.state.l + head};
      work.mass = {p.mass.window_sum == nullptr ? nullptr : p.mass.window_sum + row * kLanes,
                   kLanes, p.mass.group_max == nullptr ? nullptr : p.mass.group_max + row,
                   p.mass.power};
      run_heads<kHeadBlock>(blocks.count(b), work);
    }
  }
};

void attend_full(const AttendFullParams& p) noexcept {
  const HeadBlocks sweeps(p.geometry->group_size(), kSweepHeads);
  for (int i = 0; i < sweeps.n_blocks; ++i) FullSweep{p, sweeps.first(i), sweeps.count(i)}.run();
}

// Blocks of 16 recent tokens that are worked on together.
inline constexpr int kRecentBlocks = 8;

struct RecentSweep {
  const AttendRecentParams& p;
  int first_head, n_heads;

  void run() const {
    const int dim = p.geometry->head_dim;
    const int n_tokens = p.recent.n_tokens;
    const HeadBlocks blocks(n_heads);
    HWY_ALIGN float q[kHeadBlock * kMaxHeadDim];
    for (int b = 0; b < blocks.n_blocks; ++b) {
      const int head = first_head + blocks.first(b);
      pack_queries(p.q + static_cast<std::ptrdiff_t>(head) * dim, blocks.count(b), dim, q);
      int t = 0;
      while (t < n_tokens) {
        const int whole = HWY_MIN((n_tokens - t) / kLanes, kRecentBlocks);
        // The last tokens are a round of their own: a single block with fewer lanes.
        const int lanes = whole > 0 ? kLanes : n_tokens - t;
        round(t, whole > 0 ? whole : 1, lanes, head, blocks.count(b), q);
        t += whole > 0 ? whole * kLanes : lanes;
      }
    }
  }

  void round(int t, int n_blocks, int lanes, std::ptrdiff_t head, int count, const float* q) const {
    const std::ptrdiff_t dim = p.geometry->head_dim;
    const std::ptrdiff_t capacity = p.recent.capacity;
    Fp16Work work{};
    work.k = p.recent.k + p.kv_head * dim * capacity + t;
    work.stride_b = kLanes;
    work.stride_c = capacity;
    work.v = p.recent.v + (p.kv_head * capacity + t) * dim;
    work.walk = {n_blocks, lanes, kLanes * dim, dim, false};
    work.n_blocks = n_blocks;
    work.lanes = lanes;
    work.dim = p.geometry->head_dim;
    work.q = q;
    work.state = {p.state.o + head * dim, dim, p.state.m + head, p.state.l + head};
    work.mass.power = 1.0F;
    if (p.token_sum != nullptr) {
      work.score_out = p.token_sum + head * capacity + t;
      work.score_stride = capacity;
    }
    run_heads<kHeadBlock>(count, work);
  }
};

// Scores that were left in token_sum -> exp(power * (s - their maximum)); 0 beyond the tokens.
HWY_INLINE void finish_token_sums(const AttendRecentParams& p) {
  const LaneTag d;
  const int capacity = p.recent.capacity;
  for (int h = 0; h < p.geometry->group_size(); ++h) {
    float* sums = p.token_sum + static_cast<std::ptrdiff_t>(h) * capacity;
    const int padded = (p.recent.n_tokens + kLanes - 1) / kLanes * kLanes;
    auto highest = hn::Set(d, kMinusInf);
    for (int t = 0; t < padded; t += kLaneVec) highest = hn::Max(highest, hn::LoadU(d, sums + t));
    const float m = padded > 0 ? hn::GetLane(hn::MaxOfLanes(d, highest)) : 0.0F;
    for (int t = 0; t < padded; t += kLaneVec) {
      const auto x = hn::Sub(hn::LoadU(d, sums + t), hn::Set(d, m));
      hn::StoreU(exp_nonpositive(d, hn::Mul(x, hn::Set(d, p.power))), d, sums + t);
    }
    std::memset(sums + padded, 0, (capacity - padded) * sizeof(float));
    if (p.token_max != nullptr) p.token_max[h] = m;
  }
}

void attend_recent(const AttendRecentParams& p) noexcept {
  const HeadBlocks sweeps(p.geometry->group_size(), kSweepHeads);
  for (int i = 0; i < sweeps.n_blocks; ++i) RecentSweep{p, sweeps.first(i), sweeps.count(i)}.run();
  if (p.token_sum != nullptr) finish_token_sums(p);
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_ATTEND_FULL_INL_H_
