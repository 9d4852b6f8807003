#include "kernels/layout.h"

#include <cstring>

namespace qevict {
namespace {

// Byte offsets of one KV head's parts inside a group of `lanes` windows (1: a block).
struct QuantParts {
  QuantParts(const Geometry& g, int lanes) noexcept
      : k_grid(g.code_bytes_per_head() * lanes),
        v_codes(k_grid + g.key_grid_bytes_per_head() * lanes),
        v_grid(v_codes + g.code_bytes_per_head() * lanes),
        head_bytes(v_grid + g.value_grid_bytes_per_head() * lanes) {}
  std::size_t k_grid, v_codes, v_grid, head_bytes;
};

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
void copy_grid(GridFormat format, std::uint8_t* group, int lanes, int lane, std::uint8_t* packed,
               std::size_t n_grids) noexcept {
  if (format == GridFormat::F16) {
    copy_lane<fp16_t, kStore>(group, lanes, lane, packed, 2 * n_grids);
  } else {
    copy_lane<std::uint8_t, kStore>(group, lanes, lane, packed, grid_bytes(format) * n_grids);
  }
}

template <bool kStore>
void copy_quant(const Geometry& g, std::uint8_t* group, int lanes, int lane,
                std::uint8_t* block) noexcept {
  const QuantParts in_group(g, lanes);
  const QuantParts in_block(g, 1);
  const std::size_t codes = g.code_bytes_per_head();
  for (int h = 0; h < g.n_kv_heads; ++h) {
    std::uint8_t* to = group + in_group.head_bytes * h;
    std::uint8_t* from = block + in_block.head_bytes * h;
    copy_lane<std::uint8_t, kStore>(to, lanes, lane, from, codes);
    copy_grid<kStore>(g.key_grid, to + in_group.k_grid, lanes, lane, from + in_block.k_grid,
                      g.head_dim);
    std::uint8_t* values = to + in_group.v_codes + codes * lane;
    if constexpr (kStore) {
      std::memcpy(values, from + in_block.v_codes, codes);
    } else {
      std::memcpy(from + in_block.v_codes, values, codes);
    }
    copy_grid<kStore>(g.value_grid, to + in_group.v_grid, lanes, lane, from + in_block.v_grid,
                      g.window);
  }
}

// The shared bodies take mutable pointers; the side that is only read is not written through.
template <typename T>
std::uint8_t* bytes_of(const T* p) noexcept {
  return reinterpret_cast<std::uint8_t*>(const_cast<T*>(p));
}

}  // namespace

QuantView quant_view(const Geometry& g, const std::uint8_t* group, int lanes,
                     int kv_head) noexcept {
  const QuantParts p(g, lanes);
  const std::uint8_t* head = group + p.head_bytes * kv_head;
  return {lanes, head, head + p.k_grid, head + p.v_codes, head + p.v_grid, head + p.head_bytes};
}

QuantBlock quant_block(const Geometry& g, std::uint8_t* block, int kv_head) noexcept {
  const QuantParts p(g, 1);
  std::uint8_t* head = block + p.head_bytes * kv_head;
  QuantBlock b{};
  b.k_codes = head;
  b.k_grid = head + p.k_grid;
  b.v_codes = head + p.v_codes;
  b.v_grid = head + p.v_grid;
  if (g.key_grid == GridFormat::F16) {
    b.k_scale = reinterpret_cast<fp16_t*>(b.k_grid);
    b.k_zero = b.k_scale + g.head_dim;
  }
  if (g.value_grid == GridFormat::F16) {
    b.v_scale = reinterpret_cast<fp16_t*>(b.v_grid);
    b.v_zero = b.v_scale + g.window;
  }
  return b;
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
