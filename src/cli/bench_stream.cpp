// How fast this machine reads memory: the yardstick of the roofline lines.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <memory>
#include <thread>

#include "cli/bench.h"

namespace qevict::cli {
namespace {

constexpr std::size_t kLeastBytes = std::size_t{256} << 20;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr int kPasses = 3;

std::size_t buffer_bytes() {
  long cache = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
  cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  return std::clamp(cache > 0 ? 4 * static_cast<std::size_t>(cache) : 0, kLeastBytes, kMostBytes);
}

std::uint64_t sum(const std::uint64_t* words, std::size_t n) {
  // Several sums, so that the additions do not wait for each other.
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t s : sums) total += s;
  return total;
}

double measure(int n_threads) {
  const std::size_t n_words = buffer_bytes() / sizeof(std::uint64_t);
  const std::unique_ptr<std::uint64_t[]> words(new std::uint64_t[n_words]);
  std::atomic<std::uint64_t> total{0};  // used, so that nothing is optimised away
  std::barrier meet(n_threads);
  double best_seconds = 0.0;
  const auto work = [&](int ith) {
    const std::size_t begin = n_words / n_threads * ith;
    const std::size_t end = ith + 1 == n_threads ? n_words : begin + n_words / n_threads;
    // Each thread touches what it will read: pages near its core.
    std::fill(words.get() + begin, words.get() + end, std::uint64_t{1});
    for (int pass = 0; pass < kPasses; ++pass) {
      meet.arrive_and_wait();
      const BenchClock::time_point start = BenchClock::now();
      total += sum(words.get() + begin, end - begin);
      meet.arrive_and_wait();
      if (ith != 0) continue;
      const double seconds = ms_since(start) * 1e-3;
      best_seconds = pass == 0 ? seconds : std::min(best_seconds, seconds);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < n_threads; ++i) threads.emplace_back(work, i);
    work(0);
  }
  if (total == 0) return 0.0;  // never
  return static_cast<double>(n_words * sizeof(std::uint64_t)) / best_seconds * 1e-9;
}

}  // namespace

double stream_read_gb_s(int n_threads) {
  static const double kGbS = measure(n_threads);
  return kGbS;
}

}  // namespace qevict::cli
