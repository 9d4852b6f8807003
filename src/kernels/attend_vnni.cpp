#include "kernels/attend_vnni.h"

#include <hwy/base.h>

#include <algorithm>

#include "kernels/kernels.h"

#if HWY_ARCH_X86_64
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")

namespace qevict {
namespace {

constexpr int kMaxHeads = 8;
constexpr int kChunk = 64;  // channels that one load of a row holds

// How the codes of 16 channels come out of the loaded bytes of two tokens: each 32-bit lane is a
// channel and gets token 0's byte in its lower and token 1's in its upper half. A code stays where
// it is in its byte, so it is multiplied by a power of two that depends on the channel.
struct alignas(64) Picker {
  std::uint8_t bytes[64];       // indices
  std::uint16_t mask[32];       // what belongs to the channel
  std::uint8_t high_bytes[64];  // 3 bits: of the plane of high bits
  std::uint16_t high_mask[32];
  std::uint16_t high_value[32];
};

// For each 16 channels of a chunk, and what undoes the powers of two. The bytes of both tokens
// stand in the halves of a register (2, 4 bits); with 3 bits the planes of low bits in the first
// half, those of high bits after them.
template <int kBits>
struct Pickers {
  static constexpr int kWidth = kBits == 3 ? 2 : kBits;
  constexpr Pickers() {
    for (int c = 0; c < kChunk; ++c) {
      Picker& p = at[c / kLanes];
      const int i = c % kLanes;
      const int shift = c * kWidth % 8;
      for (int t = 0; t < 2; ++t) {
        p.bytes[4 * i + 2 * t] =
            static_cast<std::uint8_t>(c * kWidth / 8 + t * (kBits == 3 ? 16 : 32));
        p.mask[2 * i + t] = static_cast<std::uint16_t>(((1 << kWidth) - 1) << shift);
        p.high_bytes[4 * i + 2 * t] = static_cast<std::uint8_t>(32 + 8 * t + c / 8);
        p.high_mask[2 * i + t] = static_cast<std::uint16_t>(1 << (c % 8));
        p.high_value[2 * i + t] = static_cast<std::uint16_t>(4 << shift);
      }
      if (c < kLanes) unscale[c] = 1.0F / static_cast<float>(1 << shift);
    }
  }
  Picker at[kChunk / kLanes]{};
  alignas(64) float unscale[kLanes]{};
};
template <int kBits>
constexpr Pickers<kBits> kPickers{};

// A chunk of the rows of two tokens. valid: bytes of a (low) plane that belong to the rows.
template <int kBits>
HWY_INLINE __m512i load_rows(const std::uint8_t* row, std::ptrdiff_t row_bytes, int dim, int chunk,
                             __mmask64 valid) {
  if constexpr (kBits == 4) {
    const __m256i a = _mm256_maskz_loadu_epi8(static_cast<__mmask32>(valid), row + chunk / 2);
    const __m256i b =
        _mm256_maskz_loadu_epi8(static_cast<__mmask32>(valid), row + row_bytes + chunk / 2);
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  } else {
    const auto k = static_cast<__mmask16>(valid);
    const __m128i a = _mm_maskz_loadu_epi8(k, row + chunk / 4);
    const __m128i b = _mm_maskz_loadu_epi8(k, row + row_bytes + chunk / 4);
    if constexpr (kBits == 2) {
      return _mm512_inserti64x4(_mm512_castsi128_si512(a), _mm256_castsi128_si256(b), 1);
    } else {
      const auto k_high = static_cast<__mmask16>((1U << (__builtin_popcount(k) / 2)) - 1);
      const std::uint8_t* high = row + dim / 4 + chunk / 8;
      const __m128i c = _mm_maskz_loadu_epi8(k_high, high);
      const __m128i e = _mm_maskz_loadu_epi8(k_high, high + row_bytes);
      const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
      return _mm512_inserti64x4(_mm512_castsi256_si512(low),
                                _mm256_castsi128_si256(_mm_unpacklo_epi64(c, e)), 1);
    }
  }
}

template <int kBits>
HWY_INLINE __m512i pick(__m512i rows, const Picker& picker) {
  const __m512i low =
      _mm512_and_si512(_mm512_permutexvar_epi8(_mm512_load_si512(picker.bytes), rows),
                       _mm512_load_si512(picker.mask));
  if constexpr (kBits != 3) return low;
  const __m512i high = _mm512_permutexvar_epi8(_mm512_load_si512(picker.high_bytes), rows);
  const __mmask32 set = _mm512_test_epi16_mask(high, _mm512_load_si512(picker.high_mask));
  return _mm512_mask_add_epi16(low, set, low, _mm512_load_si512(picker.high_value));
}

// 8 bits: a byte a channel.
HWY_INLINE __m512i pick_bytes(const std::uint8_t* row, std::ptrdiff_t row_bytes, int n) {
  const auto k = static_cast<__mmask16>((1U << n) - 1);
  const __m512i a = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(k, row));
  const __m512i b = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(k, row + row_bytes));
  return _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
}

// Weights are whole numbers 0 .. 65535; as 16 bits have a sign, kHalf is taken from them.
constexpr float kLevels = 65535.0F;
constexpr int kHalf = 32768;

// Weights as pairs of tokens: [Omega / 2][n_heads][kLanes], 16 bits each; unit [n_heads]: what 1
// stands for. missed [n_heads]: the sum of what rounding took, times the mean code; all channels
// get it, so that only the codes' distances from the mean are multiplied by rounding errors.
struct Rounded {
  alignas(64) std::int32_t pairs[kMaxWindow / 2 * kMaxHeads * kLanes];
  float unit[kMaxHeads];
  float missed[kMaxHeads];
};

void round_weights(const IntegerValues& v, Rounded& out) {
  const int window = v.geometry->window;
  const std::ptrdiff_t row = std::ptrdiff_t{v.n_heads} * kLanes;
  const float mean_code = 0.5F * static_cast<float>((1 << v.geometry->quant_bits) - 1);
  for (int h = 0; h < v.n_heads; ++h) {
    const float* w = v.weights + h * kLanes;
    __m512 largest = _mm512_setzero_ps();
    for (int j = 0; j < window; ++j) {
      largest = _mm512_max_ps(largest, _mm512_loadu_ps(w + j * row));
    }
    const float most = _mm512_reduce_max_ps(largest);
    // Weights that small are nothing beside the probability 1 of the largest score so far.
    const bool none = most < 1e-30F;
    const __m512 factor = _mm512_set1_ps(none ? 0.0F : kLevels / most);
    const __m512 unit = _mm512_set1_ps(none ? 0.0F : most / kLevels);
    const __m512i half = _mm512_set1_epi32(kHalf);
    __m512 missed = _mm512_setzero_ps();
    const auto round = [&](int j) {
      const __m512 x = _mm512_loadu_ps(w + j * row);
      const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(x, factor));
      missed = _mm512_add_ps(missed, _mm512_fnmadd_ps(_mm512_cvtepi32_ps(rounded), unit, x));
      return _mm512_sub_epi32(rounded, half);
    };
    for (int j = 0; j < window; j += 2) {
      const __m512i a = round(j);
      const __m512i b = round(j + 1);
      const __m512i pair = _mm512_mask_blend_epi16(0xAAAAAAAAU, a, _mm512_slli_epi32(b, 16));
      _mm512_store_si512(out.pairs + j / 2 * row + h * kLanes, pair);
    }
    out.unit[h] = none ? 0.0F : most / kLevels;
    out.missed[h] = mean_code * _mm512_reduce_add_ps(missed);
  }
}

// Sums of up to kVecs vectors of channels over lanes first .. last - 1.
template <int H, int kBits, int kVecs>
HWY_INLINE void add_vectors(const IntegerValues& v, const Rounded& p, int channel, int first,
                            int last) {
  const Geometry& g = *v.geometry;
  const int dim = g.head_dim;
  const std::ptrdiff_t row_bytes = dim * kBits / 8;
  const int chunk = channel / kChunk * kChunk;
  const int in_chunk = std::min(kChunk, dim - chunk);
  // At most 32; 8 bits are masked where they are read.
  const int valid_bytes = kBits == 8 ? 0 : in_chunk * (kBits == 3 ? 2 : kBits) / 8;
  const auto valid = static_cast<__mmask64>((1ULL << valid_bytes) - 1);
  const Picker* picker = kPickers<kBits>.at + (channel - chunk) / kLanes;
  __m512i sum[H][kVecs];
  for (int h = 0; h < H; ++h) {
    for (int i = 0; i < kVecs; ++i) sum[h][i] = _mm512_setzero_si512();
  }
  // Of the codes alone: what kHalf takes from the sums.
  __m512i total[kVecs];
  for (int i = 0; i < kVecs; ++i) total[i] = _mm512_setzero_si512();
  const __m512i ones = _mm512_set1_epi32(0x10001);
  const std::uint8_t* row = v.view.v_codes + std::ptrdiff_t{first} * g.window * row_bytes;
  for (int n = first; n < last; ++n) {
    const std::int32_t* pair = p.pairs + n;
    for (int j = 0; j < g.window; j += 2, row += 2 * row_bytes, pair += H * kLanes) {
      __m512i code[kVecs];
      if constexpr (kBits == 8) {
        for (int i = 0; i < kVecs; ++i) {
          const int c = channel + i * kLanes;
          code[i] = pick_bytes(row + c, row_bytes, std::min(kLanes, dim - c));
        }
      } else {
        const __m512i rows = load_rows<kBits>(row, row_bytes, dim, chunk, valid);
        for (int i = 0; i < kVecs; ++i) code[i] = pick<kBits>(rows, picker[i]);
      }
      for (int i = 0; i < kVecs; ++i) total[i] = _mm512_dpwssd_epi32(total[i], code[i], ones);
      for (int h = 0; h < H; ++h) {
        const __m512i weight = _mm512_set1_epi32(pair[h * kLanes]);
        for (int i = 0; i < kVecs; ++i) {
          sum[h][i] = _mm512_dpwssd_epi32(sum[h][i], code[i], weight);
        }
      }
    }
  }
  const __m512 scale = _mm512_load_ps(kPickers<kBits>.unscale);
  for (int h = 0; h < H; ++h) {
    float* o = v.o + h * v.stride + channel;
    const __m512 unit = _mm512_mul_ps(scale, _mm512_set1_ps(p.unit[h]));
    const __m512 missed = _mm512_set1_ps(first == 0 ? p.missed[h] : 0.0F);
    for (int i = 0; i < kVecs; ++i) {
      float* at = o + i * kLanes;
      const __m512 entered = _mm512_add_ps(_mm512_loadu_ps(at), missed);
      const __m512i whole = _mm512_add_epi32(sum[h][i], _mm512_slli_epi32(total[i], 15));
      _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), unit, entered));
    }
  }
}

template <int H, int kBits>
void add_codes(const IntegerValues& v) {
  constexpr int kVecs = H <= 4 ? 4 : 2;
  // Sums of this many tokens cannot overflow 31 bits.
  constexpr int kLargest = kBits == 2 ? 192 : kBits == 3 ? 448 : kBits == 4 ? 240 : 255;
  constexpr int kTokens = 0x7fffffff / 65535 / kLargest;
  Rounded p;
  round_weights(v, p);
  const int at_once = kTokens / v.geometry->window;
  for (int lane = 0; lane < v.view.lanes; lane += at_once) {
    const int last = std::min(v.view.lanes, lane + at_once);
    int c = 0;
    for (; c + kVecs * kLanes <= v.stride; c += kVecs * kLanes) {
      add_vectors<H, kBits, kVecs>(v, p, c, lane, last);
    }
    for (; c < v.stride; c += kLanes) add_vectors<H, kBits, 1>(v, p, c, lane, last);
  }
}

template <int H>
void add_heads(const IntegerValues& v) {
  switch (v.geometry->quant_bits) {
    case 2:
      return add_codes<H, 2>(v);
    case 3:
      return add_codes<H, 3>(v);
    case 4:
      return add_codes<H, 4>(v);
    default:
      return add_codes<H, 8>(v);
  }
}

void add_values(const IntegerValues& v) noexcept {
  switch (v.n_heads) {
    case 1:
      return add_heads<1>(v);
    case 2:
      return add_heads<2>(v);
    case 3:
      return add_heads<3>(v);
    case 4:
      return add_heads<4>(v);
    case 5:
      return add_heads<5>(v);
    case 6:
      return add_heads<6>(v);
    case 7:
      return add_heads<7>(v);
    default:
      return add_heads<8>(v);
  }
}

}  // namespace
}  // namespace qevict

HWY_POP_ATTRIBUTES

namespace qevict {

AddIntegerValues vnni_add_values() noexcept { return add_values; }
bool cpu_has_vnni() noexcept {
  return __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
}

}  // namespace qevict

#else

namespace qevict {

AddIntegerValues vnni_add_values() noexcept { return nullptr; }
bool cpu_has_vnni() noexcept { return false; }

}  // namespace qevict

#endif
