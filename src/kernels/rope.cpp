#include "kernels/rope.h"

#include <cmath>

namespace qevict {

RopeSpec RopeSpec::plain(RopePairing pairing, int head_dim, double base) {
  RopeSpec spec;
  spec.pairing = pairing;
  spec.head_dim = head_dim;
  spec.inv_freq.resize(static_cast<std::size_t>(head_dim) / 2);
  for (std::size_t i = 0; i < spec.inv_freq.size(); ++i) {
    spec.inv_freq[i] = std::pow(base, -2.0 * static_cast<double>(i) / head_dim);
  }
  return spec;
}

void rope_angles(const RopeSpec& spec, long long position, float* cos, float* sin) noexcept {
  for (std::size_t i = 0; i < spec.inv_freq.size(); ++i) {
    const double theta = static_cast<double>(position) * spec.inv_freq[i];
    cos[i] = static_cast<float>(std::cos(theta));
    sin[i] = static_cast<float>(std::sin(theta));
  }
}

void rope_rotate(const RopeSpec& spec, const float* cos, const float* sin, float sign,
                 float* x) noexcept {
  const int pairs = spec.head_dim / 2;
  const bool neox = spec.pairing == RopePairing::Neox;
  for (int i = 0; i < pairs; ++i) {
    float& first = neox ? x[i] : x[2 * i];
    float& second = neox ? x[i + pairs] : x[2 * i + 1];
    const float a = first;
    const float b = second;
    const float s = sign * sin[i];
    first = a * cos[i] - b * s;
    second = a * s + b * cos[i];
  }
}

WindowPhases::WindowPhases(const RopeSpec& spec, int first_position, int window, int max_windows)
    : pairs_(static_cast<int>(spec.inv_freq.size())), max_windows_(max_windows) {
  const int n_coarse = (max_windows + kFine - 1) / kFine;
  const std::size_t row = static_cast<std::size_t>(2) * pairs_;
  coarse_.resize(row * n_coarse);
  fine_.resize(row * kFine);
  for (int i = 0; i < n_coarse; ++i) {
    float* cos = coarse_.data() + row * i;
    const long long position = first_position + static_cast<long long>(i) * kFine * window;
    rope_angles(spec, position, cos, cos + pairs_);
  }
  for (int i = 0; i < kFine; ++i) {
    float* cos = fine_.data() + row * i;
    rope_angles(spec, static_cast<long long>(i) * window, cos, cos + pairs_);
  }
}

}  // namespace qevict
