// Decode attention over Quantized groups, and the two preparations that it needs.
#if defined(QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
#undef QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
#else
#define QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
#endif

#include <cstring>

#include "kernels/quant_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// One row of a value grid, widened; lanes that do not exist become 0. The row may be the last of the
// allocation.
HWY_INLINE void load_grid_row(const fp16_t* row, int lanes, float* HWY_RESTRICT out) {
  const LaneTag d;
  HWY_ALIGN fp16_t padded[kLanes];
  if (lanes < kLanes) {
    std::memset(padded, 0, sizeof(padded));
    std::memcpy(padded, row, sizeof(fp16_t) * lanes);
    row = padded;
  }
  for (int part = 0; part < kLanes; part += kLaneVec) {
    hn::Store(load_f16(d, row + part), d, out + part);
  }
}

// p -> p * scale in place; offset [H]: sum of p * zero, which every channel of o gets.
template <int H>
HWY_INLINE void fold_value_grid(const QuantHead& head, int window, float* HWY_RESTRICT p,
                                float* HWY_RESTRICT offset) {
  const LaneTag d;
  HWY_ALIGN float scale[kLanes];
  HWY_ALIGN float zero[kLanes];
  HWY_ALIGN float sums[H * kLaneVec] = {};
  for (int j = 0; j < window; ++j) {
    load_grid_row(head.v_scale + std::ptrdiff_t{j} * head.lanes, head.lanes, scale);
    load_grid_row(head.v_zero + std::ptrdiff_t{j} * head.lanes, head.lanes, zero);
    for (int h = 0; h < H; ++h) {
      float* row = p + (std::ptrdiff_t{j} * H + h) * kLanes;
      auto sum = hn::Load(d, sums + h * kLaneVec);
      for (int part = 0; part < kLanes; part += kLaneVec) {
        const auto weight = hn::Load(d, row + part);
        sum = hn::MulAdd(weight, hn::Load(d, zero + part), sum);
        hn::Store(hn::Mul(weight, hn::Load(d, scale + part)), d, row + part);
      }
      hn::Store(sum, d, sums + h * kLaneVec);
    }
  }
  for (int h = 0; h < H; ++h) {
    offset[h] = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sums + h * kLaneVec)));
  }
}

// Where the codes of one vector of bytes stand: kPerByte vectors of channels come out of them.
struct CodeWalk {
  const std::uint8_t* codes;
  std::ptrdiff_t row_bytes;
  int lanes, window;
};

// Adds the tokens of a group to kPairs * 2 vectors of o; kUpper: those of the bytes' upper halves.
template <int H, int kBits, int kPairs, bool kUpper, class D>
HWY_INLINE void add_codes(D d, const CodeWalk& walk, const float* HWY_RESTRICT p,
                          const float* shrink, const float* offset, float* o,
                          std::ptrdiff_t o_stride) {
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(D()));
  constexpr int kVecs = 2 * kPairs;
  Vec<D> sum[H][kVecs];
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < kVecs; ++i) {
      sum[h][i] = hn::MulAdd(hn::LoadU(d, o + h * o_stride + i * kWidth), hn::Set(d, shrink[h]),
                             hn::Set(d, offset[h]));
    }
  }
  const std::uint8_t* row = walk.codes;
  for (int n = 0; n < walk.lanes; ++n) {
    const float* pt = p + n;
    for (int j = 0; j < walk.window; ++j, row += walk.row_bytes, pt += H * kLanes) {
      auto bytes = load_u8(d, row);
      if constexpr (kUpper) bytes = hn::ShiftRight<4>(bytes);
      Vec<D> code[kVecs];
      decode_two<kBits>(d, bytes, code[0], code[1]);
      if constexpr (kPairs == 2) decode_two<kBits>(d, hn::ShiftRight<4>(bytes), code[2], code[3]);
      for (int h = 0; h < H; ++h) {
        const auto weight = hn::Set(d, pt[h * kLanes]);
        for (int i = 0; i < kVecs; ++i) sum[h][i] = hn::MulAdd(code[i], weight, sum[h][i]);
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < kVecs; ++i) hn::StoreU(sum[h][i], d, o + h * o_stride + i * kWidth);
  }
}

// o is in code order (CodeOrder below).
template <int H, int kBits, class D>
HWY_INLINE void add_codes_with(D d, CodeWalk walk, const float* p, const float* shrink,
                               const float* offset, float* o, std::ptrdiff_t o_stride) {
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(D()));
  constexpr int kPerByte = 8 / kBits;
  const std::uint8_t* codes = walk.codes;
  for (std::ptrdiff_t b = 0; b < walk.row_bytes; b += kWidth) {
    walk.codes = codes + b;
    float* ob = o + b * kPerByte;
    if constexpr (kBits == 4) {
      add_codes<H, 4, 1, false>(d, walk, p, shrink, offset, ob, o_stride);
    } else if constexpr (H * 4 <= kRegisters / 2) {
      add_codes<H, 2, 2, false>(d, walk, p, shrink, offset, ob, o_stride);
    } else {
      add_codes<H, 2, 1, false>(d, walk, p, shrink, offset, ob, o_stride);
      add_codes<H, 2, 1, true>(d, walk, p, shrink, offset, ob + 2 * kWidth, o_stride);
    }
  }
}

// The order of o's channels while a sweep runs: a vector of bytes gives one vector of channels for
// each place in a byte, so channel (byte * per_byte + place) stands at
// (byte / width * per_byte + place) * width + byte % width.
struct CodeOrder {
  explicit CodeOrder(const Geometry& g) : per_byte(8 / g.quant_bits), dim(g.head_dim) {
    const int row_bytes = dim / per_byte;
    width = row_bytes % kLaneVec == 0 ? kLaneVec : row_bytes % 4 == 0 ? 4 : 1;
  }
  HWY_INLINE int place(int channel) const {
    const int byte = channel / per_byte;
    return (byte / width * per_byte + channel % per_byte) * width + byte % width;
  }
  void enter(const float* o, float* ordered) const {
    for (int c = 0; c < dim; ++c) ordered[place(c)] = o[c];
  }
  void leave(const float* ordered, float* o) const {
    for (int c = 0; c < dim; ++c) o[c] = ordered[place(c)];
  }
  int per_byte, dim, width;
};

// One group and one block of query heads.
template <int kBits>
struct QuantWork {
  const Geometry& g;
  const QuantHead& head;
  const CodeOrder& order;
  const float* factors;
  const float* q;  // packed
  const char* next;
  HeadState state;  // o in code order
  HeadMass mass;

  template <int H>
  void run() const {
    HWY_ALIGN float s[kMaxWindow * H * kLanes];
    float shrink[H];
    float offset[H];
    score_quantized<H, kBits>(g, head, factors, q, next, s);
    if (head.lanes < kLanes) mask_lanes<H>(g.window, head.lanes, s);
    softmax_group<H>(s, g.window, state, mass, shrink);
    fold_value_grid<H>(head, g.window, s, offset);
    const CodeWalk walk = {head.v_codes, g.head_dim / (8 / kBits), head.lanes, g.window};
    if (order.width == kLaneVec) {
      add_codes_with<H, kBits>(LaneTag(), walk, s, shrink, offset, state.o, state.o_stride);
    } else if (order.width == 4) {
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
    HWY_ALIGN float q[static_cast<std::size_t>(kMaxWindow) * kSweepHeads * kMaxHeadDim];
    HWY_ALIGN float o[kSweepHeads * kMaxHeadDim];
    for (int b = 0; b < blocks.n_blocks; ++b) {
      pack_queries_back(g, p.q_back, first_head + blocks.first(b), blocks.count(b),
                        q + blocks.first(b) * dim * g.window);
    }
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
    const QuantHead head(g, p.groups[i], p.kv_head);
    HWY_ALIGN float factors[kMaxHeadDim / 2 * kFactors * kLanes];
    key_factors(head, g, p.phases + std::ptrdiff_t{i} * dim * kLanes, factors);
    const GroupRef& wanted = p.groups[i + 1 < p.n_groups ? i + 1 : i];
    const QuantHead next(g, wanted, p.kv_head);
    for (int b = 0; b < blocks.n_blocks; ++b) {
      const std::ptrdiff_t first = blocks.first(b);
      const std::ptrdiff_t at = first_head + first;
      const std::ptrdiff_t row = std::ptrdiff_t{i} * g.group_size() + at;
      const QuantWork<kBits> work = {
          g, head, order, factors, q + first * dim * g.window,
          reinterpret_cast<const char*>(next.k_codes),
          {o + first * dim, dim, p.state.m + at, p.state.l + at},
          {p.mass.window_sum == nullptr ? nullptr : p.mass.window_sum + row * kLanes, kLanes,
           p.mass.group_max == nullptr ? nullptr : p.mass.group_max + row, p.mass.power}};
      run_heads<kHeadBlock>(blocks.count(b), work);
    }
  }
};

void attend_quantized(const AttendQuantizedParams& p) noexcept {
  const int n_heads = p.geometry->group_size();
  for (int first = 0; first < n_heads; first += kSweepHeads) {
    QuantSweep{p, first, HWY_MIN(kSweepHeads, n_heads - first)}.run();
  }
}

void rotate_queries_back(const Geometry& g, const float* q, const float* cos, const float* sin,
                         float* q_back) noexcept {
  const int pairs = g.head_dim / 2;
  const bool neox = g.pairing == RopePairing::Neox;
  const int g_size = g.group_size();
  for (int j = 0; j < g.window; ++j, cos += pairs, sin += pairs) {
    for (int h = 0; h < g_size; ++h) {
      const float* HWY_RESTRICT x = q + std::ptrdiff_t{h} * g.head_dim;
      float* HWY_RESTRICT y = q_back + (std::ptrdiff_t{j} * g_size + h) * g.head_dim;
      if (neox) {
        for (int c = 0; c < pairs; ++c) {
          y[c] = x[c] * cos[c] + x[c + pairs] * sin[c];
          y[c + pairs] = x[c + pairs] * cos[c] - x[c] * sin[c];
        }
      } else {
        for (int c = 0; c < pairs; ++c) {
          y[2 * c] = x[2 * c] * cos[c] + x[2 * c + 1] * sin[c];
          y[2 * c + 1] = x[2 * c + 1] * cos[c] - x[2 * c] * sin[c];
        }
      }
    }
  }
}

void window_phases(const WindowPhases& phases, const std::int32_t* windows, int lanes,
                   float* out) noexcept {
  const int pairs = phases.pairs();
  for (int n = 0; n < kLanes; ++n) {
    float* HWY_RESTRICT column = out + n;
    if (n >= lanes) {
      for (int c = 0; c < pairs; ++c) {
        column[2 * c * kLanes] = 1.0F;
        column[(2 * c + 1) * kLanes] = 0.0F;
      }
      continue;
    }
    const float* HWY_RESTRICT cos1 = phases.coarse_cos(windows[n]);
    const float* HWY_RESTRICT sin1 = phases.coarse_sin(windows[n]);
    const float* HWY_RESTRICT cos2 = phases.fine_cos(windows[n]);
    const float* HWY_RESTRICT sin2 = phases.fine_sin(windows[n]);
    for (int c = 0; c < pairs; ++c) {
      column[2 * c * kLanes] = cos1[c] * cos2[c] - sin1[c] * sin2[c];
      column[(2 * c + 1) * kLanes] = sin1[c] * cos2[c] + cos1[c] * sin2[c];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_ATTEND_QUANTIZED_INL_H_
