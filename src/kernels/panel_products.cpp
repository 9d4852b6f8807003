#include "kernels/panel_products.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/prefill_plan.h"

#if defined(__x86_64__) && defined(__linux__)
#define QEVICT_HAS_AMX 1
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace qevict {
namespace emulated {

// What TDPBF16PS does: pairs of products are added in fp32, in order of depth.
class Tiles {
 public:
  template <int kTile>
  void load(const void* from, std::ptrdiff_t stride) {
    for (int r = 0; r < kTileRows; ++r) {
      std::memcpy(data_[kTile] + r * 64, static_cast<const char*>(from) + r * stride, 64);
    }
  }
  template <int kTile>
  void store(void* to, std::ptrdiff_t stride) const {
    for (int r = 0; r < kTileRows; ++r) {
      std::memcpy(static_cast<char*>(to) + r * stride, data_[kTile] + r * 64, 64);
    }
  }
  template <int kTile>
  void zero() {
    std::memset(data_[kTile], 0, sizeof(data_[kTile]));
  }
  template <int kC, int kA, int kB>
  void dot() {
    auto* c = reinterpret_cast<float*>(data_[kC]);
    const auto* a = reinterpret_cast<const bf16_t*>(data_[kA]);
    const auto* b = reinterpret_cast<const bf16_t*>(data_[kB]);
    for (int m = 0; m < kTileRows; ++m) {
      for (int i = 0; i < kTileDepth / 2; ++i) {
        for (int n = 0; n < kTileRows; ++n) {
          float sum = c[m * kTileRows + n];
          for (int half = 0; half < 2; ++half) {
            sum +=
                widen(a[m * kTileDepth + 2 * i + half]) * widen(b[i * kTileDepth + 2 * n + half]);
          }
          c[m * kTileRows + n] = sum;
        }
      }
    }
  }

 private:
  static float widen(bf16_t x) {
    const std::uint32_t bits = std::uint32_t{x} << 16U;
    float f = 0.0F;
    std::memcpy(&f, &bits, sizeof(f));
    return f;
  }
  alignas(64) std::uint8_t data_[8][1024];
};

void begin(void*) noexcept {}
void end(const void*) noexcept {}

#include "kernels/panel_products-inl.h"

}  // namespace emulated

const PanelProducts& emulated_products() noexcept {
  static constexpr PanelProducts kProducts = {emulated::begin,      emulated::end,
                                              emulated::pack_query, emulated::pack_panel,
                                              emulated::score,      emulated::accumulate};
  return kProducts;
}

#ifdef QEVICT_HAS_AMX

#pragma clang attribute push(                                                        \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16"))), \
    apply_to = function)
namespace amx {

class Tiles {
 public:
  template <int kTile>
  void load(const void* from, std::ptrdiff_t stride) {
    _tile_loadd(kTile, from, static_cast<std::size_t>(stride));
  }
  template <int kTile>
  void store(void* to, std::ptrdiff_t stride) const {
    _tile_stored(kTile, to, static_cast<std::size_t>(stride));
  }
  template <int kTile>
  void zero() {
    _tile_zero(kTile);
  }
  template <int kC, int kA, int kB>
  void dot() {
    _tile_dpbf16ps(kC, kA, kB);
  }
};

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

void begin(void* saved) noexcept {
  static constexpr TileConfig kConfig;
  _tile_storeconfig(saved);
  _tile_loadconfig(&kConfig);
}

void end(const void* saved) noexcept {
  // An empty configuration (palette 0) releases the tiles.
  _tile_loadconfig(saved);
}

#include "kernels/panel_products-inl.h"

}  // namespace amx
#pragma clang attribute pop

namespace {

// The tiles' instructions, the AVX-512 that the packing uses, and the system's leave to use them.
bool amx_usable() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1U << 22U;
  constexpr unsigned kTile = 1U << 24U;
  if ((d & kBf16) == 0 || (d & kTile) == 0 || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return false;
  }
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Both products of a small panel; operands of mixed size and sign.
std::vector<float> small_problem(const PanelProducts& products) {
  constexpr int kDim = 80;
  constexpr int kRows = 16;
  constexpr int kVectors = 5;
  const auto value = [](int i) { return 8.0F * std::sin(static_cast<float>(i) * 0.7F); };
  const std::size_t depth = (kDim + kTileDepth - 1) / kTileDepth;
  std::vector<bf16_t> store(2 * (kRows * depth * kTileDepth + kPanelVectors * depth * 512 +
                                 kDim / kTileRows * (kPanelVectors / 2) * std::size_t{512} +
                                 kRows * kPanelTokens));
  ProductScratch s{};
  bf16_t* at = store.data();
  const auto take = [&](bf16_t** part, std::size_t n) {
    for (int i = 0; i < 2; ++i, at += n) part[i] = at;
  };
  take(s.q, kRows * depth * kTileDepth);
  take(s.k, kPanelVectors * depth * 512);
  take(s.v, kDim / kTileRows * (kPanelVectors / 2) * std::size_t{512});
  take(s.p, kRows * std::size_t{kPanelTokens});
  std::vector<float> k(std::size_t{kPanelTokens} * kDim);
  std::vector<float> v(std::size_t{kPanelTokens} * kDim);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = value(static_cast<int>(i) % 1009);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = value(static_cast<int>(i) % 877);
  std::vector<float> q(kDim);
  std::vector<float> results(std::size_t{kRows} * (kPanelTokens + kDim));
  alignas(64) std::uint8_t saved[64];
  products.begin(saved);
  for (int row = 0; row < kRows; ++row) {
    for (int c = 0; c < kDim; ++c) q[c] = value(row * 31 + c);
    products.pack_query(s, row, q.data(), 0.125F, kDim);
  }
  products.pack_panel(s, {k.data(), v.data(), 32, 16, kDim, kVectors, 16});
  float* scores = results.data();
  products.score(s, 0, kRows, kVectors, kDim, scores);
  products.accumulate(s, kRows, kVectors, 16, kDim, scores, scores + kRows * kPanelTokens, kDim);
  products.end(saved);
  return results;
}

bool same_as_emulated() {
  const std::vector<float> expected = small_problem(emulated_products());
  const std::vector<float> actual = small_problem(
      {amx::begin, amx::end, amx::pack_query, amx::pack_panel, amx::score, amx::accumulate});
  double scale = 0.0;
  for (const float x : expected) scale = std::max(scale, std::fabs(static_cast<double>(x)));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!(std::fabs(actual[i] - expected[i]) <= 1e-5 * scale)) return false;
  }
  return true;
}

}  // namespace

const PanelProducts* amx_products() noexcept {
  static constexpr PanelProducts kProducts = {amx::begin,      amx::end,   amx::pack_query,
                                              amx::pack_panel, amx::score, amx::accumulate};
  static const bool kUsable = amx_usable() && same_as_emulated();
  return kUsable ? &kProducts : nullptr;
}

#else

const PanelProducts* amx_products() noexcept { return nullptr; }

#endif

}  // namespace qevict
