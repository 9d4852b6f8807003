// Decode attention over Quantized groups, and the two preparations that it needs.
#if defined(QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
#undef QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
#else
#define QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
#endif

#include <cstring>

#include "kernels/quant_scores-inl.h"
#include "kernels/quant_values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// One group and one block of query heads: the scores of a block of pairs ...
template <int kBits>
struct ScoreWork {
  const Geometry& g;
  const QuantHead& head;
  const float* factors;
  int first_pair, count;
  const float* q;  // packed
  const char* next;
  float* s;

  template <int H>
  void run() const {
    score_quantized<H, kBits>(g, head, factors, first_pair, count, q, next, s);
  }
};

// ... and, when they are complete, the rest.
template <int kBits>
struct ValueWork {
  const Geometry& g;
  const QuantHead& head;
  const ValueGrid& grid;
  int width;  // of CodeOrder
  float* s;
  HeadState state;  // o in code order
  HeadMass mass;

  template <int H>
  void run() const {
    HWY_ALIGN float shrink[kLanes];
    float offset[H];
    if (head.lanes < kLanes) mask_lanes<H>(g.window, head.lanes, s);
    softmax_group<H>(s, g.window, state, mass, FoldGrid{grid, offset, hn::Zero(LaneTag())}, shrink);
    const CodeWalk walk = {head.v_codes, g.head_dim / (8 / kBits), head.lanes, g.window};
    if (width == kLaneVec) {
      add_codes_with<H, kBits>(LaneTag(), walk, s, shrink, offset, state.o, state.o_stride);
    } else if (width == 4) {
      add_codes_with<H, kBits>(hn::CappedTag<float, 4>(), walk, s, shrink, offset, state.o,
                               state.o_stride);
    } else {
      add_codes_with<H, kBits>(hn::CappedTag<float, 1>(), walk, s, shrink, offset, state.o,
                               state.o_stride);
    }
  }
};

struct QuantSweep {
  const AttendQuantizedParams& p;
  int first_head, n_heads;

  void run() const {
    const Geometry& g = *p.geometry;
    const std::ptrdiff_t dim = g.head_dim;
    const HeadBlocks blocks(n_heads);
    const CodeOrder order(g);
    const float* q = p.q_back + first_head * dim * g.window;
    HWY_ALIGN float o[kQuantSweepHeads * kMaxHeadDim];
    for (int h = 0; h < n_heads; ++h) order.enter(p.state.o + (first_head + h) * dim, o + h * dim);
    for (int i = 0; i < p.n_groups; ++i) {
      if (g.quant_bits == 2) {
        group<2>(i, blocks, order, q, o);
      } else {
        group<4>(i, blocks, order, q, o);
      }
    }
    for (int h = 0; h < n_heads; ++h) order.leave(o + h * dim, p.state.o + (first_head + h) * dim);
  }

  template <int kBits>
  void group(int i, const HeadBlocks& blocks, const CodeOrder& order, const float* q,
             float* o) const {
    const Geometry& g = *p.geometry;
    const std::ptrdiff_t dim = g.head_dim;
    const int pairs = g.head_dim / 2;
    const QuantHead head(g, p.groups[i], p.kv_head);
    const QuantHead next(g, p.groups[i + 1 < p.n_groups ? i + 1 : i], p.kv_head);
    const KeyZeros zeros(head, g);
    const float* phases = p.phases + std::ptrdiff_t{i} * dim * kLanes;
    HWY_ALIGN float factors[kPairBlock * kFactors * kLanes];
    HWY_ALIGN float s[kMaxWindow * kQuantSweepHeads * kLanes];
    std::memset(s, 0, sizeof(float) * g.window * n_heads * kLanes);
    for (int c = 0; c < pairs; c += kPairBlock) {
      const int count = HWY_MIN(kPairBlock, pairs - c);
      key_factors(head, g, zeros.rows, phases, c, count, factors);
      for (int b = 0; b < blocks.n_blocks; ++b) {
        const std::ptrdiff_t first = blocks.first(b);
        const ScoreWork<kBits> work = {g,
                                       head,
                                       factors,
                                       c,
                                       count,
                                       q + first * dim * g.window,
                                       reinterpret_cast<const char*>(next.k_codes),
                                       s + first * g.window * kLanes};
        run_heads<kHeadBlock>(blocks.count(b), work);
      }
    }
    const ValueGrid grid(head, g.window);
    // The scores have fetched what comes before them.
    const std::ptrdiff_t grid_bytes = std::ptrdiff_t{4} * g.window * next.lanes;
    for (std::ptrdiff_t at = 0; at < grid_bytes; at += 64) prefetch(next.v_scale, at);
    for (int b = 0; b < blocks.n_blocks; ++b) {
      const std::ptrdiff_t first = blocks.first(b);
      const std::ptrdiff_t at = first_head + first;
      const std::ptrdiff_t row = std::ptrdiff_t{i} * g.group_size() + at;
      const ValueWork<kBits> work = {
          g,
          head,
          grid,
          order.width,
          s + first * g.window * kLanes,
          {o + first * dim, dim, p.state.m + at, p.state.l + at},
          {p.mass.window_sum == nullptr ? nullptr : p.mass.window_sum + row * kLanes, kLanes,
           p.mass.group_max == nullptr ? nullptr : p.mass.group_max + row, p.mass.power}};
      run_heads<kHeadBlock>(blocks.count(b), work);
    }
  }
};

void attend_quantized(const AttendQuantizedParams& p) noexcept {
  const HeadBlocks sweeps(p.geometry->group_size(), kQuantSweepHeads);
  for (int i = 0; i < sweeps.n_blocks; ++i) QuantSweep{p, sweeps.first(i), sweeps.count(i)}.run();
}

// 4 x 4 transposition.
template <class D>
HWY_INLINE void transpose4(D d, Vec<D> (&x)[4]) {
  const hn::Repartition<double, D> dw;
  const auto ab_low = hn::BitCast(dw, hn::InterleaveLower(d, x[0], x[1]));
  const auto ab_high = hn::BitCast(dw, hn::InterleaveUpper(d, x[0], x[1]));
  const auto cd_low = hn::BitCast(dw, hn::InterleaveLower(d, x[2], x[3]));
  const auto cd_high = hn::BitCast(dw, hn::InterleaveUpper(d, x[2], x[3]));
  x[0] = hn::BitCast(d, hn::InterleaveLower(dw, ab_low, cd_low));
  x[1] = hn::BitCast(d, hn::InterleaveUpper(dw, ab_low, cd_low));
  x[2] = hn::BitCast(d, hn::InterleaveLower(dw, ab_high, cd_high));
  x[3] = hn::BitCast(d, hn::InterleaveUpper(dw, ab_high, cd_high));
}

// Angle addition for 4 lanes and 4 pairs at a time, transposed to lane-major order. Lanes that do
// not exist repeat the last one; the caller overwrites them.
void window_phases(const WindowPhases& phases, const std::int32_t* windows, int lanes,
                   float* out) noexcept {
  const hn::CappedTag<float, 4> d;
  using V = Vec<decltype(d)>;
  const int pairs = phases.pairs();
  for (int first = 0; first < lanes; first += 4) {
    const float* row[4][4];  // lane, table
    for (int i = 0; i < 4; ++i) {
      const int w = windows[HWY_MIN(first + i, lanes - 1)];
      row[i][0] = phases.coarse_cos(w);
      row[i][1] = phases.coarse_sin(w);
      row[i][2] = phases.fine_cos(w);
      row[i][3] = phases.fine_sin(w);
    }
    float* at = out + first;
    int c = 0;
    for (; c + 4 <= pairs; c += 4, at += std::ptrdiff_t{4} * 2 * kLanes) {
      V cos[4];
      V sin[4];
      for (int i = 0; i < 4; ++i) {
        const auto ca = hn::LoadU(d, row[i][0] + c);
        const auto sa = hn::LoadU(d, row[i][1] + c);
        const auto cb = hn::LoadU(d, row[i][2] + c);
        const auto sb = hn::LoadU(d, row[i][3] + c);
        cos[i] = hn::NegMulAdd(sa, sb, hn::Mul(ca, cb));
        sin[i] = hn::MulAdd(sa, cb, hn::Mul(ca, sb));
      }
      transpose4(d, cos);
      transpose4(d, sin);
      for (int i = 0; i < 4; ++i) {
        hn::StoreU(cos[i], d, at + std::ptrdiff_t{2} * i * kLanes);
        hn::StoreU(sin[i], d, at + std::ptrdiff_t{2 * i + 1} * kLanes);
      }
    }
    for (; c < pairs; ++c, at += std::ptrdiff_t{2} * kLanes) {
      for (int i = 0; i < 4; ++i) {
        at[i] = row[i][0][c] * row[i][2][c] - row[i][1][c] * row[i][3][c];
        at[kLanes + i] = row[i][1][c] * row[i][2][c] + row[i][0][c] * row[i][3][c];
      }
    }
  }
  for (int n = lanes; n < kLanes; ++n) {
    for (int c = 0; c < pairs; ++c) {
      out[2 * c * kLanes + n] = 1.0F;
      out[(2 * c + 1) * kLanes + n] = 0.0F;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
