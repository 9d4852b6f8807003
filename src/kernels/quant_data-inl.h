// Grids and value codes of quantised windows as vectors: what decoding and prefill share.
#if defined(QEVICT_KERNELS_QUANT_DATA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QEVICT_KERNELS_QUANT_DATA_INL_H_
#undef QEVICT_KERNELS_QUANT_DATA_INL_H_
#else
#define QEVICT_KERNELS_QUANT_DATA_INL_H_
#endif

#include <cstring>

#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

// A KV head's super-ranges for keys, as the factors of its grids need them.
struct KeyRange {
  KeyRange(const Geometry& g, const QuantRange& range, int kv_head) {
    if (g.key_grid == GridFormat::F16) return;
    const hn::CappedTag<float, 4> d;
    const fp16_t* lows = range.keys + std::ptrdiff_t{2} * kv_head * g.head_dim;
    const auto top = hn::Set(d, static_cast<float>(grid_top(g.key_grid)));
    const auto levels = hn::Set(d, static_cast<float>((1 << g.quant_bits) - 1));
    for (int c = 0; c < g.head_dim; c += 4) {
      const auto steps = hn::Div(load_f16(d, lows + g.head_dim + c), top);
      hn::Store(load_f16(d, lows + c), d, low + c);
      hn::Store(steps, d, step + c);
      hn::Store(hn::Div(steps, levels), d, unit + c);
    }
  }
  HWY_ALIGN float low[kMaxHeadDim];
  HWY_ALIGN float step[kMaxHeadDim];
  HWY_ALIGN float unit[kMaxHeadDim];  // step / levels
};

// The key grids of one group. Rows of 16 lanes are read whole (see attend_full-inl.h), so a copy is
// made where the allocation ends less than such a row after them.
struct KeyGrids {
  KeyGrids(const Geometry& g, const QuantView& view, const KeyRange& range)
      : format(g.key_grid),
        lanes(view.lanes),
        second(std::ptrdiff_t{g.head_dim} * view.lanes),
        rows(view.k_grid),
        range(range) {
    if (view.end - view.v_codes >= std::ptrdiff_t{kLanes} * 2) return;
    std::memcpy(padded, rows, static_cast<std::size_t>(view.v_codes - view.k_grid));
    rows = padded;
  }
  KeyGrids(const KeyGrids&) = delete;

  HWY_INLINE void load(int channel, int part, Vec<LaneTag>& scale, Vec<LaneTag>& zero) const {
    const LaneTag d;
    const std::ptrdiff_t at = std::ptrdiff_t{channel} * lanes + part;
    if (format == GridFormat::F16) {
      const auto* halves = reinterpret_cast<const fp16_t*>(rows);
      scale = load_f16(d, halves + at);
      zero = load_f16(d, halves + second + at);
      return;
    }
    const hn::RebindToSigned<LaneTag> di;
    auto a = load_u8(d, rows + at);
    auto b = a;
    if (format == GridFormat::U4) {
      a = hn::And(a, hn::Set(di, 15));
      b = hn::ShiftRight<4>(b);
    } else {
      b = load_u8(d, rows + second + at);
    }
    zero = hn::MulAdd(hn::ConvertTo(d, a), hn::Set(d, range.step[channel]),
                      hn::Set(d, range.low[channel]));
    scale = hn::Mul(hn::ConvertTo(d, hn::Sub(b, a)), hn::Set(d, range.unit[channel]));
  }

  GridFormat format;
  int lanes;
  std::ptrdiff_t second;  // from a row of scales or of ends a to that of zeros or b
  const std::uint8_t* rows;
  const KeyRange& range;
  HWY_ALIGN std::uint8_t padded[256];
};

// The value grid of one group, widened: scale and zero [window][kLanes]. Lanes that do not exist
// have scale 0.
struct ValueGrid {
  ValueGrid(const Geometry& g, const QuantView& view, const QuantRange& range, int kv_head) {
    const std::ptrdiff_t second = std::ptrdiff_t{g.window} * view.lanes;
    if (g.value_grid == GridFormat::F16) {
      const auto* rows = reinterpret_cast<const fp16_t*>(view.v_grid);
      for (int j = 0; j < g.window; ++j, rows += view.lanes) {
        load(rows, view.lanes, scale + j * kLanes);
        load(rows + second, view.lanes, zero + j * kLanes);
      }
      return;
    }
    const LaneTag d;
    const float low = fp16_to_fp32(range.values[2 * kv_head]);
    const float step = fp16_to_fp32(range.values[2 * kv_head + 1]) / 255.0F;
    const float unit = step / static_cast<float>((1 << g.quant_bits) - 1);
    const std::uint8_t* rows = view.v_grid;
    for (int j = 0; j < g.window; ++j, rows += view.lanes) {
      HWY_ALIGN float a[kLanes];
      HWY_ALIGN float b[kLanes];
      load(rows, view.lanes, a);
      load(rows + second, view.lanes, b);
      for (int part = 0; part < kLanes; part += kLaneVec) {
        const auto end_a = hn::Load(d, a + part);
        const auto span = hn::Sub(hn::Load(d, b + part), end_a);
        hn::Store(hn::Mul(span, hn::Set(d, unit)), d, scale + j * kLanes + part);
        hn::Store(hn::MulAdd(end_a, hn::Set(d, step), hn::Set(d, low)), d,
                  zero + j * kLanes + part);
      }
    }
  }

  static HWY_INLINE Vec<LaneTag> widen(const fp16_t* p) { return load_f16(LaneTag(), p); }
  static HWY_INLINE Vec<LaneTag> widen(const std::uint8_t* p) {
    return hn::ConvertTo(LaneTag(), load_u8(LaneTag(), p));
  }
  // The last rows may be the end of the allocation: fewer lanes are copied first.
  template <class T>
  static HWY_INLINE void load(const T* row, int lanes, float* out) {
    HWY_ALIGN T padded[kLanes] = {};
    if (lanes < kLanes) {
      std::memcpy(padded, row, sizeof(T) * lanes);
      row = padded;
    }
    for (int part = 0; part < kLanes; part += kLaneVec) {
      hn::Store(widen(row + part), LaneTag(), out + part);
    }
  }

  HWY_ALIGN float scale[kMaxWindow * kLanes];
  HWY_ALIGN float zero[kMaxWindow * kLanes];
};

// Spreading: one row of value codes becomes a byte each, in channel order. A byte holds its code
// times a power of two that depends on its channel only (unscale is the inverse), so that bytes
// need not be shifted one by one. Rows of bytes are padded to whole blocks of channels.
inline constexpr int kCodeBlock = 16;

HWY_INLINE int padded_dim(const Geometry& g) {
  return (g.head_dim + kCodeBlock - 1) / kCodeBlock * kCodeBlock;
}

struct CodeSpreader {
  static constexpr int kChunk = 64;  // channels that are spread together where there are as many
  explicit CodeSpreader(int bits) : bits(bits) {
    const int width = bits == 3 ? 2 : bits;
    for (int i = 0; i < kChunk; ++i) {
      const int place = i % (8 / width);
      const bool down = bits == 3 && place == 3;  // the high bit would not fit
      const int shift = (down ? 2 : place) * width;
      from[i] = static_cast<std::uint8_t>(i * width / 8);
      mask[i] = static_cast<std::uint8_t>(((1 << width) - 1) << shift);
      moved[i] = down ? mask[i] : 0;
      if (down) mask[i] = 0;
      high_from[i] = static_cast<std::uint8_t>(i / 8);
      high_bit[i] = static_cast<std::uint8_t>(1 << (i % 8));
      high_value[i] = static_cast<std::uint8_t>(4 << shift);
      if (i < kCodeBlock) unscale[i] = 1.0F / static_cast<float>(1 << shift);
    }
  }

  // n rows that follow each other; out: [n][stride].
  void spread(const std::uint8_t* rows, int n, int dim, std::ptrdiff_t stride,
              std::uint8_t* out) const {
    switch (bits) {
      case 2:
        return spread_rows<2>(rows, n, dim, stride, out);
      case 3:
        return spread_rows<3>(rows, n, dim, stride, out);
      case 4:
        return spread_rows<4>(rows, n, dim, stride, out);
      default:
        return spread_rows<8>(rows, n, dim, stride, out);
    }
  }

  template <int kBits>
  HWY_INLINE void spread_rows(const std::uint8_t* HWY_RESTRICT row, int n, int dim,
                              std::ptrdiff_t stride, std::uint8_t* HWY_RESTRICT out) const {
    constexpr int kWidth = kBits == 3 ? 2 : kBits;
    constexpr int kLoaded = 128 / kWidth;  // channels in 16 bytes of the (low) plane
    const hn::CappedTag<std::uint8_t, kLoaded> d;
    const hn::FixedTag<std::uint8_t, kCodeBlock> block;
    const hn::Repartition<std::uint64_t, decltype(d)> d64;
    const hn::Repartition<std::uint64_t, decltype(block)> block64;
    for (int t = 0; t < n; ++t, row += dim * kBits / 8, out += stride) {
      const std::uint8_t* high = row + dim / 4;
      int c = 0;
      for (; c + kLoaded <= dim; c += kLoaded) {
        const auto bytes = hn::LoadDup128(d, row + c * kWidth / 8);
        const auto upper = hn::BitCast(d, hn::Set(d64, kBits == 3 ? load(high + c / 8, 8) : 0));
        for (int i = 0; i < kLoaded; i += static_cast<int>(hn::MaxLanes(d))) {
          hn::StoreU(place<kBits>(d, bytes, upper, i), d, out + c + i);
        }
      }
      for (; c < dim; c += kCodeBlock) {
        const int left = HWY_MIN(kCodeBlock, dim - c);
        auto bytes = hn::Zero(block);
        if constexpr (kWidth == 8) {  // only a last, partial block comes here
          HWY_ALIGN std::uint8_t copy[kCodeBlock] = {};
          std::memcpy(copy, row + c, left);
          bytes = hn::Load(block, copy);
        } else {
          bytes =
              hn::BitCast(block, hn::Set(block64, load(row + c * kWidth / 8, left * kWidth / 8)));
        }
        const std::uint64_t upper = kBits == 3 ? load(high + c / 8, left / 8) : 0;
        hn::Store(place<kBits>(block, bytes, hn::BitCast(block, hn::Set(block64, upper)), 0), block,
                  out + c);
      }
    }
  }

  // Channels first .. of what was loaded; bytes repeat in every 16.
  template <int kBits, class D>
  HWY_INLINE hn::Vec<D> place(D d, hn::Vec<D> bytes, hn::Vec<D> upper, int first) const {
    if constexpr (kBits == 8) return bytes;
    const auto x = hn::TableLookupBytes(bytes, hn::LoadU(d, from + first));
    if constexpr (kBits != 3) {
      return hn::And(x, hn::LoadU(d, mask + first));
    } else {
      const hn::Repartition<std::uint16_t, D> d16;
      const auto down = hn::BitCast(d, hn::ShiftRight<2>(hn::BitCast(d16, x)));
      const auto low = hn::Or(hn::And(x, hn::LoadU(d, mask + first)),
                              hn::And(down, hn::LoadU(d, moved + first)));
      const auto bit = hn::LoadU(d, high_bit + first);
      const auto y = hn::And(hn::TableLookupBytes(upper, hn::LoadU(d, high_from + first)), bit);
      return hn::Or(low,
                    hn::And(hn::VecFromMask(d, hn::Eq(y, bit)), hn::LoadU(d, high_value + first)));
    }
  }

  // n <= 8 bytes, the rest 0.
  static HWY_INLINE std::uint64_t load(const std::uint8_t* p, int n) {
    std::uint64_t word = 0;
    if (n == 8) {
      std::memcpy(&word, p, 8);
    } else if (n == 4) {
      std::memcpy(&word, p, 4);
    } else {
      for (int i = 0; i < n; ++i) word |= std::uint64_t{p[i]} << (8 * i);
    }
    return word;
  }

  int bits;
  HWY_ALIGN std::uint8_t from[kChunk];  // byte of what was loaded
  HWY_ALIGN std::uint8_t mask[kChunk];
  HWY_ALIGN std::uint8_t moved[kChunk];  // 3 bits: the same after a shift by 2
  HWY_ALIGN std::uint8_t high_from[kChunk];
  HWY_ALIGN std::uint8_t high_bit[kChunk];
  HWY_ALIGN std::uint8_t high_value[kChunk];
  HWY_ALIGN float unscale[kCodeBlock];
};

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#endif  // QEVICT_KERNELS_QUANT_DATA_INL_H_
