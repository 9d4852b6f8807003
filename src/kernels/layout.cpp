#include "kernels/layout.h"

#include <cstring>

namespace qevict {
namespace {

// Codes and grids of one KV head inside a block or group of `lanes` windows (lanes = 1: a block).
struct QuantParts {
  std::size_t k_codes, k_scale, k_zero, v_codes, v_scale, v_zero;  // byte offsets
  std::size_t head_bytes;
};

QuantParts quant_parts(const Geometry& g, int lanes) noexcept {
  const std::size_t codes = g.code_bytes_per_head() * lanes;
  const std::size_t key_grid = sizeof(fp16_t) * g.head_dim * lanes;
  const std::size_t value_grid = sizeof(fp16_t) * g.window * lanes;
  QuantParts p{};
  p.k_codes = 0;
  p.k_scale = codes;
  p.k_zero = p.k_scale + key_grid;
  p.v_codes = p.k_zero + key_grid;
  p.v_scale = p.v_codes + codes;
  p.v_zero = p.v_scale + value_grid;
  p.head_bytes = p.v_zero + value_grid;
  return p;
}

// Copies n items between a packed row and one lane of lane-major storage, either way.
template <typename T, bool kStore>
void copy_lane(std::uint8_t* group, int lanes, int lane, std::uint8_t* packed,
               std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint8_t* in_group = group + (i * lanes + lane) * sizeof(T);
    std::uint8_t* in_packed = packed + i * sizeof(T);
    if constexpr (kStore) {
      std::memcpy(in_group, in_packed, sizeof(T));
    } else {
      std::memcpy(in_packed, in_group, sizeof(T));
    }
  }
}

template <bool kStore>
void copy_full(const Geometry& g, std::uint8_t* group, int lanes, int lane, std::uint8_t* k,
               std::uint8_t* v) noexcept {
  const std::size_t items = static_cast<std::size_t>(g.window) * g.head_dim;  // of K, of V
  const std::size_t bytes = items * sizeof(fp16_t);
  for (int h = 0; h < g.n_kv_heads; ++h) {
    std::uint8_t* head = group + 2 * bytes * lanes * h;
    copy_lane<fp16_t, kStore>(head, lanes, lane, k + bytes * h, items);
    std::uint8_t* values = head + bytes * lanes + bytes * lane;
    if constexpr (kStore) {
      std::memcpy(values, v + bytes * h, bytes);
    } else {
      std::memcpy(v + bytes * h, values, bytes);
    }
  }
}

template <bool kStore>
void copy_quant(const Geometry& g, std::uint8_t* group, int lanes, int lane,
                std::uint8_t* block) noexcept {
  const QuantParts in_group = quant_parts(g, lanes);
  const QuantParts in_block = quant_parts(g, 1);
  const std::size_t codes = g.code_bytes_per_head();
  const std::size_t dim = static_cast<std::size_t>(g.head_dim);
  const std::size_t window = static_cast<std::size_t>(g.window);
  for (int h = 0; h < g.n_kv_heads; ++h) {
    std::uint8_t* to = group + in_group.head_bytes * h;
    std::uint8_t* from = block + in_block.head_bytes * h;
    copy_lane<std::uint8_t, kStore>(to + in_group.k_codes, lanes, lane, from + in_block.k_codes,
                                    codes);
    copy_lane<fp16_t, kStore>(to + in_group.k_scale, lanes, lane, from + in_block.k_scale, dim);
    copy_lane<fp16_t, kStore>(to + in_group.k_zero, lanes, lane, from + in_block.k_zero, dim);
    std::uint8_t* values = to + in_group.v_codes + codes * lane;
    if constexpr (kStore) {
      std::memcpy(values, from + in_block.v_codes, codes);
    } else {
      std::memcpy(from + in_block.v_codes, values, codes);
    }
    copy_lane<fp16_t, kStore>(to + in_group.v_scale, lanes, lane, from + in_block.v_scale, window);
    copy_lane<fp16_t, kStore>(to + in_group.v_zero, lanes, lane, from + in_block.v_zero, window);
  }
}

// The shared bodies take mutable pointers; the side that is only read is not written through.
template <typename T>
std::uint8_t* bytes_of(const T* p) noexcept {
  return reinterpret_cast<std::uint8_t*>(const_cast<T*>(p));
}

}  // namespace

QuantBlock quant_block(const Geometry& g, std::uint8_t* block, int kv_head) noexcept {
  const QuantParts p = quant_parts(g, 1);
  std::uint8_t* head = block + p.head_bytes * kv_head;
  const auto grid = [head](std::size_t at) { return reinterpret_cast<fp16_t*>(head + at); };
  return {head + p.k_codes, grid(p.k_scale), grid(p.k_zero),
          head + p.v_codes, grid(p.v_scale), grid(p.v_zero)};
}

void full_group_store(const Geometry& g, std::uint8_t* group, int lanes, int lane, const fp16_t* k,
                      const fp16_t* v) noexcept {
  copy_full<true>(g, group, lanes, lane, bytes_of(k), bytes_of(v));
}

void full_group_load(const Geometry& g, const std::uint8_t* group, int lanes, int lane, fp16_t* k,
                     fp16_t* v) noexcept {
  copy_full<false>(g, bytes_of(group), lanes, lane, bytes_of(k), bytes_of(v));
}

void quant_group_store(const Geometry& g, std::uint8_t* group, int lanes, int lane,
                       const std::uint8_t* block) noexcept {
  copy_quant<true>(g, group, lanes, lane, bytes_of(block));
}

void quant_group_load(const Geometry& g, const std::uint8_t* group, int lanes, int lane,
                      std::uint8_t* block) noexcept {
  copy_quant<false>(g, bytes_of(group), lanes, lane, block);
}

}  // namespace qevict
