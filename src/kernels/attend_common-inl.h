// What the decode kernels share: scores of fp16 keys, the softmax step of one group, P.V of fp16
// rows.
//
// Scratch of scores and probabilities: s [block][H][kLanes], one block of 16 lanes for each of up
// to kMaxWindow rounds; H query heads are worked on together (a template argument: registers).
#if defined(QEVICT_KERNELS_ATTEND_COMMON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_ATTEND_COMMON_INL_H_
#undef QEVICT_KERNELS_ATTEND_COMMON_INL_H_
#else
#define QEVICT_KERNELS_ATTEND_COMMON_INL_H_
#endif

#include <limits>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Running softmax of H heads: pointers into the caller's state, strides in floats.
struct HeadState {
  float* o;  // [H][o_stride]
  std::ptrdiff_t o_stride;
  float* m;  // [H]
  float* l;  // [H]
};

struct HeadMass {
  float* window_sum;  // [H][sum_stride], null: not wanted
  std::ptrdiff_t sum_stride;
  float* group_max;  // [H]
  float power;
};

// q [n_heads][dim] -> [dim][n_heads], so that the heads' factors of one channel are neighbours.
HWY_INLINE void pack_queries(const float* q, int n_heads, int dim, float* packed) {
  for (int h = 0; h < n_heads; ++h) {
    for (int d = 0; d < dim; ++d)
      packed[d * n_heads + h] = q[static_cast<std::ptrdiff_t>(h) * dim + d];
  }
}

// Scores of kBlocks blocks of keys: element (block b, channel c, lane n) at k[b * stride_b +
// c * stride_c + n]. q: packed. Meanwhile as many bytes are fetched `ahead` of k.
template <int H, int kBlocks>
HWY_INLINE void score_blocks(const fp16_t* k, std::ptrdiff_t stride_b, std::ptrdiff_t stride_c,
                             int dim, const float* HWY_RESTRICT q, std::ptrdiff_t ahead,
                             float* HWY_RESTRICT s) {
  const LaneTag d;
  for (int part = 0; part < kLanes; part += kLaneVec) {
    Vec<LaneTag> sum[kBlocks][H];
    for (int b = 0; b < kBlocks; ++b) {
      for (int h = 0; h < H; ++h) sum[b][h] = hn::Zero(d);
    }
    const fp16_t* row = k + part;
    Separate<kBlocks> qc(q);
    for (int c = 0; c < dim; ++c, row += stride_c, qc.advance(H)) {
      Vec<LaneTag> key[kBlocks];
      for (int b = 0; b < kBlocks; ++b) key[b] = load_f16(d, row + b * stride_b);
      for (int b = 0; b < kBlocks; b += 2) {
        prefetch(k + (std::ptrdiff_t{c} * kBlocks + b) * kLanes, ahead);
      }
      for (int h = 0; h < H; ++h) {
        for (int b = 0; b < kBlocks; ++b) {
          sum[b][h] = hn::MulAdd(key[b], hn::Set(d, qc.at[b][h]), sum[b][h]);
        }
      }
    }
    for (int b = 0; b < kBlocks; ++b) {
      for (int h = 0; h < H; ++h) hn::Store(sum[b][h], d, s + (b * H + h) * kLanes + part);
    }
  }
}

template <int H>
HWY_INLINE void score_all(const fp16_t* k, int n_blocks, std::ptrdiff_t stride_b,
                          std::ptrdiff_t stride_c, int dim, const float* q, std::ptrdiff_t ahead,
                          float* s) {
  constexpr int kBlocks = H * 4 <= kRegisters / 2 ? 4 : 2;
  int b = 0;
  for (; b + kBlocks <= n_blocks; b += kBlocks) {
    score_blocks<H, kBlocks>(k + b * stride_b, stride_b, stride_c, dim, q, ahead,
                             s + b * H * kLanes);
  }
  for (; b < n_blocks; ++b) {
    score_blocks<H, 1>(k + b * stride_b, stride_b, stride_c, dim, q, ahead, s + b * H * kLanes);
  }
}

// Lanes `lanes`.. get score -inf, whatever they hold (NaN included).
template <int H>
HWY_INLINE void mask_lanes(int n_blocks, int lanes, float* s) {
  for (int row = 0; row < n_blocks * H; ++row) {
    for (int n = lanes; n < kLanes; ++n) s[row * kLanes + n] = kMinusInf;
  }
}

// sum over blocks of exp(power * (s - m)), per lane.
template <int H>
HWY_INLINE void powered_sums(const float* s, int n_blocks, float m, float power, float* out) {
  const LaneTag d;
  for (int part = 0; part < kLanes; part += kLaneVec) {
    auto sum = hn::Zero(d);
    for (int b = 0; b < n_blocks; ++b) {
      const auto x = hn::Sub(hn::Load(d, s + b * H * kLanes + part), hn::Set(d, m));
      sum = hn::Add(sum, exp_nonpositive(d, hn::Mul(x, hn::Set(d, power))));
    }
    hn::StoreU(sum, d, out + part);
  }
}

// m [H] is raised to the group's largest scores. shrink [kLanes]: what o and l have to be
// multiplied by. The heads are independent of each other until here, so that their latencies
// overlap.
template <int H>
HWY_INLINE void raise_maxima(const float* HWY_RESTRICT s, int n_blocks, float* HWY_RESTRICT m,
                             float* HWY_RESTRICT shrink) {
  const LaneTag d;
  HWY_ALIGN float before[kLanes] = {};
  HWY_ALIGN float after[kLanes] = {};
  for (int h = 0; h < H; ++h) {
    auto highest = hn::Load(d, s + h * kLanes);
    for (int b = 0; b < n_blocks; ++b) {
      for (int part = 0; part < kLanes; part += kLaneVec) {
        highest = hn::Max(highest, hn::Load(d, s + (b * H + h) * kLanes + part));
      }
    }
    before[h] = m[h];
    after[h] = HWY_MAX(m[h], hn::GetLane(hn::MaxOfLanes(d, highest)));
    m[h] = after[h];
  }
  for (int part = 0; part < kLanes; part += kLaneVec) {
    const auto fall = hn::Sub(hn::Load(d, before + part), hn::Load(d, after + part));
    hn::Store(exp_nonpositive(d, fall), d, shrink + part);
  }
}

// What a tier does with a vector of probabilities on the way: Full keeps them.
struct KeepWeights {
  HWY_INLINE void begin() {}
  HWY_INLINE Vec<LaneTag> weight(int /*block*/, int /*part*/, Vec<LaneTag> p) { return p; }
  HWY_INLINE void end(int /*head*/) {}
};

// Scores -> exp(s - m), as `grid` changes them, in place; m and l are brought up to date. shrink
// [kLanes]: what o has to be multiplied by. The group's reference maximum for the masses is the new
// m.
template <int H, class Grid>
HWY_INLINE void softmax_group(float* HWY_RESTRICT s, int n_blocks, const HeadState& state,
                              const HeadMass& mass, Grid grid, float* HWY_RESTRICT shrink) {
  const LaneTag d;
  static_assert(H <= kLanes);
  raise_maxima<H>(s, n_blocks, state.m, shrink);
  const bool plain = mass.power == 1.0F;
  for (int h = 0; h < H; ++h) {
    float* head = s + h * kLanes;
    float* window_sum =
        mass.window_sum != nullptr ? mass.window_sum + h * mass.sum_stride : nullptr;
    if (window_sum != nullptr && !plain) {
      powered_sums<H>(head, n_blocks, state.m[h], mass.power, window_sum);
    }
    if (mass.group_max != nullptr) mass.group_max[h] = state.m[h];
    const auto m = hn::Set(d, state.m[h]);
    auto total = hn::Zero(d);
    grid.begin();
    for (int part = 0; part < kLanes; part += kLaneVec) {
      auto sum = hn::Zero(d);
      for (int b = 0; b < n_blocks; ++b) {
        float* at = head + b * H * kLanes + part;
        const auto p = exp_nonpositive(d, hn::Sub(hn::Load(d, at), m));
        sum = hn::Add(sum, p);
        hn::Store(grid.weight(b, part, p), d, at);
      }
      if (window_sum != nullptr && plain) hn::StoreU(sum, d, window_sum + part);
      total = hn::Add(total, sum);
    }
    grid.end(h);
    state.l[h] = state.l[h] * shrink[h] + hn::GetLane(hn::SumOfLanes(d, total));
  }
}

// Two nested loops over the tokens of a group: one over its lanes, one over its blocks. Strides in
// elements of V.
struct TokenWalk {
  int n_outer, n_inner;
  std::ptrdiff_t v_outer, v_inner;
  bool lanes_outer;
};

// o[h][0 .. kVecs * lanes) = o * shrink + sum over tokens of p * v.
template <int H, int kVecs, class D>
HWY_INLINE void add_values(D d, const fp16_t* v, const TokenWalk& walk, std::ptrdiff_t ahead,
                           const float* HWY_RESTRICT p, const float* shrink, float* o,
                           std::ptrdiff_t o_stride) {
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(D()));
  Vec<D> sum[H][kVecs];
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < kVecs; ++i) {
      sum[h][i] = hn::Mul(hn::LoadU(d, o + h * o_stride + i * kWidth), hn::Set(d, shrink[h]));
    }
  }
  const std::ptrdiff_t p_outer = walk.lanes_outer ? 1 : H * kLanes;
  const std::ptrdiff_t p_inner = walk.lanes_outer ? H * kLanes : 1;
  for (int a = 0; a < walk.n_outer; ++a) {
    const fp16_t* row = v + a * walk.v_outer;
    Separate<kVecs> pt(p + a * p_outer);
    for (int b = 0; b < walk.n_inner; ++b, row += walk.v_inner, pt.advance(p_inner)) {
      Vec<D> value[kVecs];
      for (int i = 0; i < kVecs; ++i) value[i] = load_f16(d, row + i * kWidth);
      prefetch(row, ahead);
      for (int h = 0; h < H; ++h) {
        for (int i = 0; i < kVecs; ++i) {
          sum[h][i] = hn::MulAdd(value[i], hn::Set(d, pt.at[i][h * kLanes]), sum[h][i]);
        }
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < kVecs; ++i) hn::StoreU(sum[h][i], d, o + h * o_stride + i * kWidth);
  }
}

template <int H, class D>
HWY_INLINE void add_values_with(D d, const fp16_t* v, const TokenWalk& walk, int dim,
                                std::ptrdiff_t ahead, const float* p, const float* shrink,
                                const HeadState& state) {
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(D()));
  constexpr int kVecs = H * 4 <= kRegisters / 2 ? 4 : 2;
  int c = 0;
  for (; c + kVecs * kWidth <= dim; c += kVecs * kWidth) {
    add_values<H, kVecs>(d, v + c, walk, ahead, p, shrink, state.o + c, state.o_stride);
  }
  for (; c < dim; c += kWidth) {
    add_values<H, 1>(d, v + c, walk, ahead, p, shrink, state.o + c, state.o_stride);
  }
}

// All channels; dim is a multiple of 4.
template <int H>
HWY_INLINE void add_all_values(const fp16_t* v, const TokenWalk& walk, int dim,
                               std::ptrdiff_t ahead, const float* p, const float* shrink,
                               const HeadState& state) {
  if (dim % kLaneVec == 0) {
    add_values_with<H>(LaneTag(), v, walk, dim, ahead, p, shrink, state);
  } else {
    add_values_with<H>(hn::CappedTag<float, 4>(), v, walk, dim, ahead, p, shrink, state);
  }
}

// Splits n_heads into blocks of nearly equal size, `limit` at most.
struct HeadBlocks {
  explicit HeadBlocks(int n_heads, int limit = kHeadBlock)
      : n_heads(n_heads), n_blocks((n_heads + limit - 1) / limit) {}
  int first(int block) const { return n_heads * block / n_blocks; }
  int count(int block) const { return first(block + 1) - first(block); }
  int n_heads, n_blocks;
};

// Calls work.template run<H>() for the H that equals n_heads (1..kHeadBlock).
template <int H, class Work>
HWY_INLINE void run_heads(int n_heads, const Work& work) {
  if constexpr (H == 1) {
    work.template run<1>();
  } else {
    if (n_heads == H) {
      work.template run<H>();
    } else {
      run_heads<H - 1>(n_heads, work);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_ATTEND_COMMON_INL_H_
