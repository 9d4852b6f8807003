#include "policies/kvzap.h"

#include <cmath>

namespace qevict {
namespace {

// w x + b for w [b.size()][x.size()]; sums in double.
std::vector<double> affine(std::span<const float> w, std::span<const float> b,
                           std::span<const double> x) {
  std::vector<double> y(b.begin(), b.end());
  for (std::size_t r = 0; r < y.size(); ++r) {
    for (std::size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
  }
  return y;
}

double gelu(double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }

}  // namespace

std::vector<std::vector<float>> kvzap_scores(const KvZapWeights& weights,
                                             std::span<const float> states) {
  std::vector<std::vector<float>> scores(static_cast<std::size_t>(weights.n_kv_heads));
  const auto width = static_cast<std::size_t>(weights.hidden);
  for (std::size_t t = 0; t + width <= states.size(); t += width) {
    const std::vector<double> x(states.begin() + t, states.begin() + t + width);
    std::vector<double> y = affine(weights.w1, weights.b1, x);
    if (weights.mlp_hidden > 0) {
      for (double& value : y) value = gelu(value);
      y = affine(weights.w2, weights.b2, y);
    }
    for (std::size_t g = 0; g < scores.size(); ++g) scores[g].push_back(static_cast<float>(y[g]));
  }
  return scores;
}

}  // namespace qevict
