// Random numbers of the tasks: the same on every machine (the distributions of <random> are not).
// Thread safety: one thread an object.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

namespace qevict {

class Random {
 public:
  // A stream of its own for each seed, name and index: sample i does not depend on how many others
  // are made.
  Random(std::uint64_t seed, std::string_view stream, std::uint64_t index = 0) {
    std::uint64_t state = mix(seed);
    for (const char c : stream) state = mix(state ^ static_cast<unsigned char>(c));
    engine_.seed(mix(state ^ index));
  }

  std::uint64_t bits() { return engine_(); }
  // 0 <= result < n; n > 0. (The bias of the remainder is below n / 2^64.)
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  int between(int first, int last) {
    return first + static_cast<int>(below(static_cast<std::size_t>(last - first + 1)));
  }

  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }
  // k different numbers below n, in random order; k <= n.
  std::vector<std::size_t> sample(std::size_t n, std::size_t k) {
    std::vector<std::size_t> all(n);
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (std::size_t i = 0; i < k; ++i) std::swap(all[i], all[i + below(n - i)]);
    all.resize(k);
    return all;
  }

 private:
  static std::uint64_t mix(std::uint64_t x) {  // splitmix64
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
  }
  std::mt19937_64 engine_;
};

// Places of 0 <= share < 1 that cover the range evenly for any number of samples: multiples of the
// golden ratio.
inline double spread(int index) {
  const double x = (index + 0.5) * 0.6180339887498949;
  return x - std::floor(x);
}

}  // namespace qevict
