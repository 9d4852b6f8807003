// Decode attention over Quantized groups, and the two preparations that it needs.
#if defined(QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
#undef QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
#else
#define QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
#endif

#include <cstring>

#include "kernels/attend_vnni.h"
#include "kernels/quant_scores-inl.h"
#include "kernels/quant_values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// One group and one block of query heads: the scores of a block of pairs ...
struct ScoreWork {
  const Geometry& g;
  const QuantView& view;
  const float* factors;
  int first_pair, count;
  const float* q;  // packed
  Ahead next;
  float* s;

  template <int H>
  void run() const {
    switch (code_shape(g.quant_bits)) {
      case CodeShape::Shared:
        return score_quantized<H, CodeShape::Shared>(g, view, factors, first_pair, count, q, next,
                                                     s);
      case CodeShape::Apart:
        return score_quantized<H, CodeShape::Apart>(g, view, factors, first_pair, count, q, next,
                                                    s);
      case CodeShape::Planes:
        return score_quantized<H, CodeShape::Planes>(g, view, factors, first_pair, count, q, next,
                                                     s);
    }
  }
};

// ... when they are complete, the probabilities ...
struct SoftmaxWork {
  const ValueGrid& grid;
  int window, lanes;
  float* s;
  HeadState state;
  HeadMass mass;
  float* shrink;
  float* offset;

  template <int H>
  void run() const {
    if (lanes < kLanes) mask_lanes<H>(window, lanes, s);
    softmax_group<H>(s, window, state, mass, FoldGrid{grid, offset, hn::Zero(LaneTag())}, shrink);
  }
};

// ... and the values of some of its windows.
struct ValueWork {
  const CodeWalk& walk;
  const float* p;
  const float* unscale;
  float* o;

  template <int H>
  void run() const {
    add_all_codes<H>(walk, p, unscale, o, walk.stride);
  }
};

struct QuantSweep {
  QuantSweep(const AttendQuantizedParams& p, int first_head, int n_heads, AddIntegerValues integer)
      : p(p),
        g(*p.geometry),
        integer(integer),
        first_head(first_head),
        n_heads(n_heads),
        blocks(n_heads),
        stride(padded_dim(g)),
        range(g, p.range, p.kv_head),
        spreader(g.quant_bits) {}

  void run() {
    const std::size_t row = sizeof(float) * g.head_dim;
    float* state = p.state.o + std::ptrdiff_t{first_head} * g.head_dim;
    std::memset(o, 0, sizeof(float) * n_heads * stride);
    for (int h = 0; h < n_heads; ++h) std::memcpy(o + h * stride, state + h * g.head_dim, row);
    for (int i = 0; i < p.n_groups; ++i) group(i);
    for (int h = 0; h < n_heads; ++h) std::memcpy(state + h * g.head_dim, o + h * stride, row);
  }

  void group(int i) {
    const GroupRef& at = p.groups[i];
    const GroupRef& after = p.groups[i + 1 < p.n_groups ? i + 1 : i];
    const QuantView view = quant_view(g, at.data, at.lanes, p.kv_head);
    const QuantView next = quant_view(g, after.data, after.lanes, p.kv_head);
    score(i, view, next);
    const ValueGrid grid(g, view, p.range, p.kv_head);
    // The scores have fetched what comes before them.
    for (const std::uint8_t* line = next.v_grid; line < next.end; line += 64) prefetch(line, 0);
    softmax(i, view, grid);
    enter();
    if (integer != nullptr) {
      add_integer_values(view);
    } else {
      add_values(view);
    }
  }

  void score(int i, const QuantView& view, const QuantView& next) {
    const int pairs = g.head_dim / 2;
    const float* q = p.q_back + std::ptrdiff_t{first_head} * g.head_dim * g.window;
    const float* phases = p.phases + std::ptrdiff_t{i} * g.head_dim * kLanes;
    const KeyGrids grids(g, view, range);
    // As many bytes as codes, of keys and of values, are read.
    const Ahead ahead = {reinterpret_cast<const char*>(next.k_codes), 32 * g.quant_bits};
    std::memset(s, 0, sizeof(float) * g.window * n_heads * kLanes);
    for (int c = 0; c < pairs; c += kPairBlock) {
      const int count = HWY_MIN(kPairBlock, pairs - c);
      HWY_ALIGN float factors[kPairBlock * kFactors * kLanes];
      key_factors(grids, g, phases, c, count, factors);
      for (int b = 0; b < blocks.n_blocks; ++b) {
        const std::ptrdiff_t first = blocks.first(b);
        const float* packed = q + first * g.head_dim * g.window;
        const ScoreWork work = {g,     view,   factors, c,
                                count, packed, ahead,   s + first * g.window * kLanes};
        run_heads<kHeadBlock>(blocks.count(b), work);
      }
    }
  }

  void softmax(int i, const QuantView& view, const ValueGrid& grid) {
    for (int b = 0; b < blocks.n_blocks; ++b) {
      const std::ptrdiff_t first = blocks.first(b);
      const std::ptrdiff_t head = first_head + first;
      const std::ptrdiff_t row = std::ptrdiff_t{i} * g.group_size() + head;
      const SoftmaxWork work = {
          grid,
          g.window,
          view.lanes,
          s + first * g.window * kLanes,
          {nullptr, 0, p.state.m + head, p.state.l + head},
          {p.mass.window_sum == nullptr ? nullptr : p.mass.window_sum + row * kLanes, kLanes,
           p.mass.group_max == nullptr ? nullptr : p.mass.group_max + row, p.mass.power},
          shrink + b * kLanes,
          offset + b * kLanes};
      run_heads<kHeadBlock>(blocks.count(b), work);
    }
  }

  // o relative to the new maxima, and what every channel gets.
  void enter() {
    const LaneTag d;
    for (int b = 0; b < blocks.n_blocks; ++b) {
      for (int h = 0; h < blocks.count(b); ++h) {
        const auto factor = hn::Set(d, shrink[b * kLanes + h]);
        const auto added = hn::Set(d, offset[b * kLanes + h]);
        float* row = o + std::ptrdiff_t{blocks.first(b) + h} * stride;
        for (int c = 0; c < stride; c += kLaneVec) {
          hn::Store(hn::MulAdd(hn::Load(d, row + c), factor, added), d, row + c);
        }
      }
    }
  }

  void add_integer_values(const QuantView& view) {
    for (int b = 0; b < blocks.n_blocks; ++b) {
      const std::ptrdiff_t first = blocks.first(b);
      integer(
          {&g, view, s + first * g.window * kLanes, blocks.count(b), o + first * stride, stride});
    }
  }

  void add_values(const QuantView& view) {
    const std::ptrdiff_t row_bytes = g.head_dim * g.quant_bits / 8;
    const int at_once = HWY_MIN(view.lanes, kCodeBytes / (stride * g.window));
    for (int lane = 0; lane < view.lanes; lane += at_once) {
      const CodeWalk walk = {codes, stride, lane, HWY_MIN(at_once, view.lanes - lane), g.window};
      const std::uint8_t* row = view.v_codes + std::ptrdiff_t{lane} * g.window * row_bytes;
      spreader.spread(row, walk.lanes * g.window, g.head_dim, stride, codes);
      for (int b = 0; b < blocks.n_blocks; ++b) {
        const std::ptrdiff_t first = blocks.first(b);
        const ValueWork work = {walk, s + first * g.window * kLanes, spreader.unscale,
                                o + first * stride};
        run_heads<kHeadBlock>(blocks.count(b), work);
      }
    }
  }

  const AttendQuantizedParams& p;
  const Geometry& g;
  AddIntegerValues integer;  // null: values in fp32
  int first_head, n_heads;
  HeadBlocks blocks;
  int stride;  // of o and of spread codes: D padded
  KeyRange range;
  CodeSpreader spreader;
  HWY_ALIGN float shrink[kQuantSweepHeads * kLanes];  // [block][kLanes]
  HWY_ALIGN float offset[kQuantSweepHeads * kLanes];
  HWY_ALIGN float o[kQuantSweepHeads * kMaxHeadDim];
  HWY_ALIGN float s[kMaxWindow * kQuantSweepHeads * kLanes];
  HWY_ALIGN std::uint8_t codes[kCodeBytes];
};

HWY_INLINE void run_quant_sweeps(const AttendQuantizedParams& p, AddIntegerValues integer) {
  const HeadBlocks sweeps(p.geometry->group_size(), kQuantSweepHeads);
  for (int i = 0; i < sweeps.n_blocks; ++i) {
    QuantSweep(p, sweeps.first(i), sweeps.count(i), integer).run();
  }
}

void attend_quantized(const AttendQuantizedParams& p) noexcept { run_quant_sweeps(p, nullptr); }

void attend_quantized_integer(const AttendQuantizedParams& p) noexcept {
  run_quant_sweeps(p, vnni_add_values());
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
