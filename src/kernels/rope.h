// RoPE with angles from double precision, so that un-rotation inverts rotation at any position.
#pragma once

#include <vector>

#include "kernels/geometry.h"

namespace qevict {

// theta(position, i) = position * inv_freq[i]; scaling factors of the model are folded in.
struct RopeSpec {
  RopePairing pairing = RopePairing::Neox;
  int head_dim = 0;
  std::vector<double> inv_freq;  // [D/2]

  // Plain RoPE: inv_freq[i] = base^(-2i/D).
  static RopeSpec plain(RopePairing pairing, int head_dim, double base);
};

// cos and sin of all pairs at one position; each [D/2], rounded to fp32 from double.
void rope_angles(const RopeSpec& spec, long long position, float* cos, float* sin) noexcept;

// Rotates x [D] in place by the given angles (sign = +1), or back (sign = -1).
void rope_rotate(const RopeSpec& spec, const float* cos, const float* sin, float sign,
                 float* x) noexcept;

// Angles of window bases by angle addition of two small tables (kernels.md: no table of the
// context's size is streamed). Row `w` of the virtual table is the position first + w * window.
class WindowPhases {
 public:
  WindowPhases() = default;
  WindowPhases(const RopeSpec& spec, int first_position, int window, int max_windows);
  static constexpr int kFine = 64;
  int pairs() const { return pairs_; }
  // [pairs] each: angles of the coarse row w / kFine and of the fine row w % kFine.
  // w < max_windows().
  const float* coarse_cos(int w) const {
    return coarse_.data() + std::size_t(w / kFine) * 2 * pairs_;
  }
  const float* coarse_sin(int w) const { return coarse_cos(w) + pairs_; }
  const float* fine_cos(int w) const { return fine_.data() + std::size_t(w % kFine) * 2 * pairs_; }
  const float* fine_sin(int w) const { return fine_cos(w) + pairs_; }
  std::size_t bytes() const { return (coarse_.size() + fine_.size()) * sizeof(float); }
  int max_windows() const { return max_windows_; }

 private:
  int pairs_ = 0;
  int max_windows_ = 0;
  std::vector<float> coarse_;  // [n][2][pairs]: cos then sin; includes first_position
  std::vector<float> fine_;    // [kFine][2][pairs]
};

}  // namespace qevict
