// The loops below run over contiguous fp32 with no calls inside, so that the compiler vectorises
// them; every operation is a single IEEE one, so the result does not depend on the vector width.
#include "kernels/codec.h"

#include <algorithm>
#include <bit>

#include "kernels/layout.h"

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

float* as_rows(float* scratch, const Geometry& g) noexcept {
  return scratch + 4 * static_cast<std::size_t>(g.head_dim);
}

// Keys of one KV head: one grid a channel, over the window. k [Omega][D]; work [4][D]: low, high,
// scale, zero.
void quantize_keys(const Geometry& g, const float* k, const QuantBlock& out, float* work) noexcept {
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
  for (int d = 0; d < dim; ++d) make_grid(low[d], high[d], levels, &out.k_scale[d], &out.k_zero[d]);
  widen_all(out.k_scale, dim, scale);
  widen_all(out.k_zero, dim, zero);

  // low is done with: it holds the bytes that are being put together, one a channel.
  float* bytes = low;
  const int per_byte = 8 / g.quant_bits;
  const int row_bytes = g.window / per_byte;
  for (int b = 0; b < row_bytes; ++b) {
    std::fill_n(bytes, dim, 0.0F);
    for (int i = 0; i < per_byte; ++i) {
      const float* row = k + static_cast<std::ptrdiff_t>(b * per_byte + i) * dim;
      const auto weight = static_cast<float>(1 << (i * g.quant_bits));
      for (int d = 0; d < dim; ++d) bytes[d] += code_of(row[d], scale[d], zero[d], levels) * weight;
    }
    std::uint8_t* out_byte = out.k_codes + b;
    for (int d = 0; d < dim; ++d) out_byte[d * row_bytes] = static_cast<std::uint8_t>(bytes[d]);
  }
}

// Values of one KV head: one grid a token, over the channels. v [Omega][D]; work [D].
void quantize_values(const Geometry& g, const float* v, const QuantBlock& out,
                     float* work) noexcept {
  const int dim = g.head_dim;
  const float levels = static_cast<float>((1 << g.quant_bits) - 1);
  const int per_byte = 8 / g.quant_bits;
  for (int j = 0; j < g.window; ++j) {
    const float* row = v + static_cast<std::ptrdiff_t>(j) * dim;
    float low = row[0];
    float high = row[0];
    for (int d = 1; d < dim; ++d) {
      low = row[d] < low ? row[d] : low;
      high = row[d] > high ? row[d] : high;
    }
    make_grid(low, high, levels, &out.v_scale[j], &out.v_zero[j]);
    const float scale = widen(out.v_scale[j]);
    const float zero = widen(out.v_zero[j]);
    for (int d = 0; d < dim; ++d) work[d] = code_of(row[d], scale, zero, levels);
    std::uint8_t* bytes = out.v_codes + static_cast<std::ptrdiff_t>(j) * dim / per_byte;
    for (int b = 0; b < dim / per_byte; ++b) {
      float byte = 0.0F;
      for (int i = per_byte - 1; i >= 0; --i)
        byte = byte * (levels + 1.0F) + work[b * per_byte + i];
      bytes[b] = static_cast<std::uint8_t>(byte);
    }
  }
}

}  // namespace

std::size_t quantize_scratch_floats(const Geometry& g) noexcept {
  const std::size_t rows = static_cast<std::size_t>(g.window) * g.head_dim;
  // Work rows, then K and V of one head while quantising, of all heads while restoring; angles.
  return 4 * static_cast<std::size_t>(g.head_dim) + 2 * rows * g.n_kv_heads + rows;
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

void quantize_window_pre_rope(const Geometry& g, const float* k_pre, const float* v,
                              std::uint8_t* block, float* scratch) noexcept {
  const std::size_t rows = static_cast<std::size_t>(g.window) * g.head_dim;
  for (int h = 0; h < g.n_kv_heads; ++h) {
    const QuantBlock out = quant_block(g, block, h);
    quantize_keys(g, k_pre + rows * h, out, scratch);
    quantize_values(g, v + rows * h, out, scratch);
  }
}

void quantize_window(const Geometry& g, const RopeSpec& rope, long long first_position,
                     const fp16_t* k, const fp16_t* v, std::uint8_t* block,
                     float* scratch) noexcept {
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
  quantize_window_pre_rope(g, k_pre, v_wide, block, scratch);
}

void dequantize_window(const Geometry& g, const std::uint8_t* block, float* k_pre,
                       float* v) noexcept {
  const int per_byte = 8 / g.quant_bits;
  const std::uint32_t mask = (1U << g.quant_bits) - 1U;
  const int dim = g.head_dim;
  for (int h = 0; h < g.n_kv_heads; ++h) {
    const QuantBlock in = quant_block(g, const_cast<std::uint8_t*>(block), h);
    float* k_head = k_pre + static_cast<std::ptrdiff_t>(h) * g.window * dim;
    float* v_head = v + static_cast<std::ptrdiff_t>(h) * g.window * dim;
    for (int j = 0; j < g.window; ++j) {
      const float v_scale = widen(in.v_scale[j]);
      const float v_zero = widen(in.v_zero[j]);
      for (int d = 0; d < dim; ++d) {
        const std::uint32_t k_byte = in.k_codes[d * (g.window / per_byte) + j / per_byte];
        const std::uint32_t v_byte = in.v_codes[(j * dim + d) / per_byte];
        const auto k_code = static_cast<float>((k_byte >> (j % per_byte * g.quant_bits)) & mask);
        const auto v_code = static_cast<float>((v_byte >> (d % per_byte * g.quant_bits)) & mask);
        k_head[j * dim + d] = k_code * widen(in.k_scale[d]) + widen(in.k_zero[d]);
        v_head[j * dim + d] = v_code * v_scale + v_zero;
      }
    }
  }
}

void restore_window(const Geometry& g, const RopeSpec& rope, long long first_position,
                    const std::uint8_t* block, fp16_t* k, fp16_t* v, float* scratch) noexcept {
  const std::size_t rows = static_cast<std::size_t>(g.window) * g.head_dim;
  const std::size_t pairs = static_cast<std::size_t>(g.head_dim) / 2;
  float* k_wide = as_rows(scratch, g);
  float* v_wide = k_wide + rows * g.n_kv_heads;
  float* cos = v_wide + rows * g.n_kv_heads;
  dequantize_window(g, block, k_wide, v_wide);
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
