// The loops below run over contiguous fp32 with no calls inside, so that the compiler vectorises
// them; every operation is a single IEEE one, so the result does not depend on the vector width.
#include "kernels/codec.h"

#include <algorithm>
#include <bit>

#include "kernels/quant_view.h"

namespace qevict {
namespace {

constexpr float kFp16Max = 65504.0F;

// Exact: the multiplication only moves the exponent (fp16 denormals included).
inline float widen(fp16_t h) noexcept {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(h & 0x7fffU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

// For finite fp16; Inf and NaN are refused before they come here.
void widen_all(const fp16_t* from, std::size_t n, float* to) noexcept {
  for (std::size_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}

void narrow_all(const float* from, std::size_t n, fp16_t* to) noexcept {
  for (std::size_t i = 0; i < n; ++i) to[i] = fp32_to_fp16(from[i]);
}

inline fp16_t narrow_saturated(float x) noexcept {
  return fp32_to_fp16(std::clamp(x, -kFp16Max, kFp16Max));
}

inline void make_grid(float low, float high, float levels, fp16_t* scale, fp16_t* zero) noexcept {
  constexpr fp16_t kOne = 0x3c00;
  *zero = narrow_saturated(low);
  *scale = high == low ? kOne : narrow_saturated((high - low) / levels);
  if (*scale == 0) *scale = kOne;
}

// clamp(round_half_even((x - zero) / scale), 0, levels), as a float. Clamping first is the same
// (the bounds are whole) and keeps the value in the range where adding 2^23 rounds half to even.
inline float code_of(float x, float scale, float zero, float levels) noexcept {
  float y = (x - zero) / scale;
  y = y < 0.0F ? 0.0F : y;
  y = y > levels ? levels : y;
  return (y + 0x1p23F) - 0x1p23F;
}

std::size_t work_floats(const Geometry& g) noexcept {
  return 4 * static_cast<std::size_t>(g.head_dim + g.window);
}

float* as_rows(float* scratch, const Geometry& g) noexcept { return scratch + work_floats(g); }

// The part of 3-bit codes that a plane holds; other codes have one plane.
enum class Plane : std::uint8_t { Whole, Low, High };

// A row's planes: bits of each item, the first byte, of a row of n items.
struct PlaneSpec {
  Plane plane;
  int width;
  int first_byte;
};
int planes_of(int bits, int n, PlaneSpec (&planes)[2]) noexcept {
  if (bits != 3) {
    planes[0] = {Plane::Whole, bits, 0};
    return 1;
  }
  planes[0] = {Plane::Low, 2, 0};
  planes[1] = {Plane::High, 1, n / 4};
  return 2;
}

template <Plane kPlane>
inline float part_of(float code) noexcept {
  const float high = code >= 4.0F ? 1.0F : 0.0F;
  return kPlane == Plane::Whole ? code : kPlane == Plane::Low ? code - 4.0F * high : high;
}

// Calls f.template operator()<plane>().
template <typename F>
inline void with_plane(Plane plane, const F& f) noexcept {
  switch (plane) {
    case Plane::Whole:
      return f.template operator()<Plane::Whole>();
    case Plane::Low:
      return f.template operator()<Plane::Low>();
    case Plane::High:
      return f.template operator()<Plane::High>();
  }
}

// n grids from the extremes of their groups: scale, zero [n], and as they are stored. F16, or ends
// inside the super-ranges low, width [n] with `range_stride` 1 (0: one range for all).
void make_grids(GridFormat format, int bits, int n, const float* lowest, const float* highest,
                const fp16_t* range_low, const fp16_t* range_width, int range_stride,
                std::uint8_t* stored, float* scale, float* zero) noexcept {
  if (format == GridFormat::F16) {
    const auto levels = static_cast<float>((1 << bits) - 1);
    auto* stored_scale = reinterpret_cast<fp16_t*>(stored);
    fp16_t* stored_zero = stored_scale + n;
    for (int i = 0; i < n; ++i) {
      make_grid(lowest[i], highest[i], levels, &stored_scale[i], &stored_zero[i]);
    }
    widen_all(stored_scale, n, scale);
    widen_all(stored_zero, n, zero);
    return;
  }
  const int top = grid_top(format);
  const auto last = static_cast<float>(top);
  for (int i = 0; i < n; ++i) {
    const float low = widen(range_low[i * range_stride]);
    const float width = widen(range_width[i * range_stride]);
    const float step = width / last;
    const float a = code_of(lowest[i], step, low, last - 1.0F);
    const float b = std::max(code_of(highest[i], step, low, last), a + 1.0F);
    const QuantGrid grid =
        grid_between(low, width, top, bits, static_cast<int>(a), static_cast<int>(b));
    scale[i] = grid.scale;
    zero[i] = grid.zero;
    if (format == GridFormat::U4) {
      stored[i] = static_cast<std::uint8_t>(a + 16.0F * b);
    } else {
      stored[i] = static_cast<std::uint8_t>(a);
      stored[n + i] = static_cast<std::uint8_t>(b);
    }
  }
}

// Keys of one KV head: one grid a channel, over the window. k [Omega][D]; work [4][D]: low, high,
// scale, zero. range [2][D].
void quantize_keys(const Geometry& g, const float* k, const QuantBlock& out, const fp16_t* range,
                   float* work) noexcept {
  const int dim = g.head_dim;
  const float levels = static_cast<float>((1 << g.quant_bits) - 1);
  float* low = work;
  float* high = low + dim;
  float* scale = high + dim;
  float* zero = scale + dim;
  std::copy_n(k, dim, low);
  std::copy_n(k, dim, high);
  for (int j = 1; j < g.window; ++j) {
    const float* row = k + static_cast<std::ptrdiff_t>(j) * dim;
    for (int d = 0; d < dim; ++d) low[d] = row[d] < low[d] ? row[d] : low[d];
    for (int d = 0; d < dim; ++d) high[d] = row[d] > high[d] ? row[d] : high[d];
  }
  make_grids(g.key_grid, g.quant_bits, dim, low, high, range,
             range == nullptr ? nullptr : range + dim, 1, out.k_grid, scale, zero);

  // low is done with: it holds the bytes that are being put together, one a channel.
  float* bytes = low;
  const int row_bytes = g.window * g.quant_bits / 8;
  PlaneSpec planes[2];
  const int n_planes = planes_of(g.quant_bits, g.window, planes);
  for (int p = 0; p < n_planes; ++p) {
    const PlaneSpec& spec = planes[p];
    const int per_byte = 8 / spec.width;
    with_plane(spec.plane, [&]<Plane kPlane>() {
      for (int b = 0; b < g.window / per_byte; ++b) {
        std::fill_n(bytes, dim, 0.0F);
        for (int i = 0; i < per_byte; ++i) {
          const float* row = k + static_cast<std::ptrdiff_t>(b * per_byte + i) * dim;
          const auto weight = static_cast<float>(1 << (i * spec.width));
          for (int d = 0; d < dim; ++d) {
            bytes[d] += part_of<kPlane>(code_of(row[d], scale[d], zero[d], levels)) * weight;
          }
        }
        std::uint8_t* out_byte = out.k_codes + spec.first_byte + b;
        for (int d = 0; d < dim; ++d) out_byte[d * row_bytes] = static_cast<std::uint8_t>(bytes[d]);
      }
    });
  }
}

// Values of one KV head: one grid a token, over the channels. v [Omega][D]; work [D] and 4 [Omega].
// range [2].
void quantize_values(const Geometry& g, const float* v, const QuantBlock& out, const fp16_t* range,
                     float* work) noexcept {
  const int dim = g.head_dim;
  const float levels = static_cast<float>((1 << g.quant_bits) - 1);
  float* lowest = work + dim;
  float* highest = lowest + g.window;
  float* scale = highest + g.window;
  float* zero = scale + g.window;
  for (int j = 0; j < g.window; ++j) {
    const float* row = v + static_cast<std::ptrdiff_t>(j) * dim;
    float low = row[0];
    float high = row[0];
    for (int d = 1; d < dim; ++d) {
      low = row[d] < low ? row[d] : low;
      high = row[d] > high ? row[d] : high;
    }
    lowest[j] = low;
    highest[j] = high;
  }
  make_grids(g.value_grid, g.quant_bits, g.window, lowest, highest, range,
             range == nullptr ? nullptr : range + 1, 0, out.v_grid, scale, zero);
  PlaneSpec planes[2];
  const int n_planes = planes_of(g.quant_bits, dim, planes);
  for (int j = 0; j < g.window; ++j) {
    const float* row = v + static_cast<std::ptrdiff_t>(j) * dim;
    for (int d = 0; d < dim; ++d) work[d] = code_of(row[d], scale[j], zero[j], levels);
    std::uint8_t* codes = out.v_codes + static_cast<std::ptrdiff_t>(j) * dim * g.quant_bits / 8;
    for (int p = 0; p < n_planes; ++p) {
      const PlaneSpec& spec = planes[p];
      const int per_byte = 8 / spec.width;
      const auto base = static_cast<float>(1 << spec.width);
      with_plane(spec.plane, [&]<Plane kPlane>() {
        std::uint8_t* bytes = codes + spec.first_byte;
        for (int b = 0; b < dim / per_byte; ++b) {
          float byte = 0.0F;
          for (int i = per_byte - 1; i >= 0; --i) {
            byte = byte * base + part_of<kPlane>(work[b * per_byte + i]);
          }
          bytes[b] = static_cast<std::uint8_t>(byte);
        }
      });
    }
  }
}

}  // namespace

std::size_t quantize_scratch_floats(const Geometry& g) noexcept {
  const std::size_t rows = static_cast<std::size_t>(g.window) * g.head_dim;
  // Work rows, then K and V of one head while quantising, of all heads while restoring; angles.
  return work_floats(g) + 2 * rows * g.n_kv_heads + rows;
}

void quantize_group(const float* x, int n, std::ptrdiff_t stride, int bits, std::uint8_t* codes,
                    fp16_t* scale, fp16_t* zero) noexcept {
  const float levels = static_cast<float>((1 << bits) - 1);
  float low = x[0];
  float high = x[0];
  for (int i = 1; i < n; ++i) {
    low = std::min(low, x[i * stride]);
    high = std::max(high, x[i * stride]);
  }
  make_grid(low, high, levels, scale, zero);
  const float s = widen(*scale);
  const float z = widen(*zero);
  for (int i = 0; i < n; ++i) {
    codes[i] = static_cast<std::uint8_t>(code_of(x[i * stride], s, z, levels));
  }
}

namespace {

const fp16_t* key_range(const Geometry& g, const QuantRange& range, int kv_head) noexcept {
  return range.keys == nullptr ? nullptr : range.keys + std::ptrdiff_t{2} * kv_head * g.head_dim;
}
const fp16_t* value_range(const QuantRange& range, int kv_head) noexcept {
  return range.values == nullptr ? nullptr : range.values + 2 * kv_head;
}

}  // namespace

void quantize_window_pre_rope(const Geometry& g, const float* k_pre, const float* v,
                              std::uint8_t* block, float* scratch,
                              const QuantRange& range) noexcept {
  const std::size_t rows = static_cast<std::size_t>(g.window) * g.head_dim;
  for (int h = 0; h < g.n_kv_heads; ++h) {
    const QuantBlock out = quant_block(g, block, h);
    quantize_keys(g, k_pre + rows * h, out, key_range(g, range, h), scratch);
    quantize_values(g, v + rows * h, out, value_range(range, h), scratch);
  }
}

void quantize_window(const Geometry& g, const RopeSpec& rope, long long first_position,
                     const fp16_t* k, const fp16_t* v, std::uint8_t* block, float* scratch,
                     const QuantRange& range) noexcept {
  const std::size_t rows = static_cast<std::size_t>(g.window) * g.head_dim;
  const std::size_t pairs = static_cast<std::size_t>(g.head_dim) / 2;
  float* k_pre = as_rows(scratch, g);
  float* v_wide = k_pre + rows * g.n_kv_heads;
  float* cos = v_wide + rows * g.n_kv_heads;
  widen_all(k, rows * g.n_kv_heads, k_pre);
  widen_all(v, rows * g.n_kv_heads, v_wide);
  for (int j = 0; j < g.window; ++j) {
    rope_angles(rope, first_position + j, cos, cos + pairs);
    for (int h = 0; h < g.n_kv_heads; ++h) {
      rope_rotate(rope, cos, cos + pairs, -1.0F, k_pre + rows * h + std::size_t(j) * g.head_dim);
    }
  }
  quantize_window_pre_rope(g, k_pre, v_wide, block, scratch, range);
}

void dequantize_window(const Geometry& g, const std::uint8_t* block, float* k_pre, float* v,
                       const QuantRange& range) noexcept {
  const std::ptrdiff_t dim = g.head_dim;
  for (int h = 0; h < g.n_kv_heads; ++h) {
    const QuantView in = quant_view(g, block, 1, h);
    float* k_head = k_pre + h * g.window * dim;
    float* v_head = v + h * g.window * dim;
    for (int d = 0; d < dim; ++d) {
      const QuantGrid grid = key_grid_of(g, in, range, h, 0, d);
      for (int j = 0; j < g.window; ++j) {
        k_head[j * dim + d] = static_cast<float>(key_code(g, in, 0, j, d)) * grid.scale + grid.zero;
      }
    }
    for (int j = 0; j < g.window; ++j) {
      const QuantGrid grid = value_grid_of(g, in, range, h, 0, j);
      for (int d = 0; d < dim; ++d) {
        v_head[j * dim + d] =
            static_cast<float>(value_code(g, in, 0, j, d)) * grid.scale + grid.zero;
      }
    }
  }
}

void requantize_window(const Geometry& from, const std::uint8_t* block, const Geometry& to,
                       std::uint8_t* out, float* scratch, const QuantRange& range) noexcept {
  const std::size_t rows = static_cast<std::size_t>(from.window) * from.head_dim;
  float* k_pre = as_rows(scratch, from);
  float* v = k_pre + rows * from.n_kv_heads;
  dequantize_window(from, block, k_pre, v, range);
  quantize_window_pre_rope(to, k_pre, v, out, scratch, range);
}

void restore_window(const Geometry& g, const RopeSpec& rope, long long first_position,
                    const std::uint8_t* block, fp16_t* k, fp16_t* v, float* scratch,
                    const QuantRange& range) noexcept {
  const std::size_t rows = static_cast<std::size_t>(g.window) * g.head_dim;
  const std::size_t pairs = static_cast<std::size_t>(g.head_dim) / 2;
  float* k_wide = as_rows(scratch, g);
  float* v_wide = k_wide + rows * g.n_kv_heads;
  float* cos = v_wide + rows * g.n_kv_heads;
  dequantize_window(g, block, k_wide, v_wide, range);
  for (int j = 0; j < g.window; ++j) {
    rope_angles(rope, first_position + j, cos, cos + pairs);
    for (int h = 0; h < g.n_kv_heads; ++h) {
      rope_rotate(rope, cos, cos + pairs, 1.0F, k_wide + rows * h + std::size_t(j) * g.head_dim);
    }
  }
  narrow_all(k_wide, rows * g.n_kv_heads, k);
  narrow_all(v_wide, rows * g.n_kv_heads, v);
}

}  // namespace qevict
