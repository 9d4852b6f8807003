// Decode kernels: ns per token and KV head, all query heads of the KV head and the masses included.
// Shapes: A = 7 query heads a KV head, D 64; B = 4 query heads, D 128.
//
// The argument is the working set in MiB: 100 comes from memory, 1 from the caches. The smallest of
// the repetitions is the figure to compare; CPU time, so that a busy machine matters less.
//
//   kernels_bench --benchmark_filter='full/avx512' --benchmark_repetitions=20
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "kernels/codec.h"
#include "kernels/kernels.h"

namespace {

using namespace qevict;

constexpr int kGroupsPerCall = 64;  // 8192 tokens

Geometry shape(char name, int bits) {
  Geometry g;
  g.n_kv_heads = 2;
  g.n_heads = name == 'A' ? 14 : 8;
  g.head_dim = name == 'A' ? 64 : 128;
  g.quant_bits = bits;
  return g;
}

struct Aligned {
  explicit Aligned(std::size_t bytes)
      : data(static_cast<std::uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))) {}
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  std::uint8_t* data;
};

// Groups of 16 random windows that together fill the working set.
struct Store {
  Store(const Geometry& g, bool quantized, std::size_t working_set) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const std::size_t n = static_cast<std::size_t>(g.n_kv_heads) * g.window * g.head_dim;
    std::vector<fp16_t> k(n);
    std::vector<fp16_t> v(n);
    std::vector<std::uint8_t> block(g.quantized_window_bytes());
    std::vector<float> scratch(quantize_scratch_floats(g));
    const RopeSpec rope = RopeSpec::plain(g.pairing, g.head_dim, 1e6);
    for (fp16_t& x : k) x = fp32_to_fp16(normal(random));
    for (fp16_t& x : v) x = fp32_to_fp16(normal(random));
    quantize_window(g, rope, 0, k.data(), v.data(), block.data(), scratch.data());
    const std::size_t bytes =
        kLanes * (quantized ? g.quantized_window_bytes() : g.full_window_bytes());
    while (buffers.size() * bytes < working_set || buffers.size() % kGroupsPerCall != 0) {
      buffers.push_back(std::make_unique<Aligned>(bytes));
      std::uint8_t* data = buffers.back()->data;
      for (int lane = 0; lane < kLanes; ++lane) {
        if (quantized) {
          quant_group_store(g, data, kLanes, lane, block.data());
        } else {
          full_group_store(g, data, kLanes, lane, k.data(), v.data());
        }
      }
      groups.push_back({data, kLanes});
    }
  }
  std::vector<std::unique_ptr<Aligned>> buffers;
  std::vector<GroupRef> groups;
};

struct Call {
  Call(const Geometry& g, const KernelTable& kernels)
      : q(static_cast<std::size_t>(g.group_size()) * g.head_dim, 0.01F),
        q_back(query_back_floats(g)),
        phases(static_cast<std::size_t>(kGroupsPerCall) * g.head_dim * kLanes, 0.7F),
        o(static_cast<std::size_t>(g.group_size()) * g.head_dim),
        m(g.group_size()),
        l(g.group_size()),
        window_sum(static_cast<std::size_t>(kGroupsPerCall) * g.group_size() * kLanes),
        group_max(static_cast<std::size_t>(kGroupsPerCall) * g.group_size()) {
    std::vector<float> cos(static_cast<std::size_t>(g.window) * g.head_dim / 2, 0.7F);
    kernels.rotate_queries_back(g, q.data(), cos.data(), cos.data(), q_back.data());
  }
  std::vector<float> q, q_back, phases, o, m, l, window_sum, group_max;
};

void decode(benchmark::State& state, const KernelTable& kernels, char name, int bits, bool masses) {
  const Geometry g = shape(name, bits == 0 ? 2 : bits);
  const Store store(g, bits != 0, static_cast<std::size_t>(state.range(0)) << 20);
  Call call(g, kernels);
  const SoftmaxState softmax{call.o.data(), call.m.data(), call.l.data()};
  GroupMass mass;
  if (masses) mass = {call.window_sum.data(), call.group_max.data(), 1.0F};
  for (auto _ : state) {
    for (std::size_t first = 0; first < store.groups.size(); first += kGroupsPerCall) {
      for (int head = 0; head < g.n_kv_heads; ++head) {
        softmax_reset(softmax, g.group_size(), g.head_dim);
        const GroupRef* groups = store.groups.data() + first;
        if (bits == 0) {
          kernels.attend_full({&g, head, call.q.data(), groups, kGroupsPerCall, softmax, mass});
        } else {
          kernels.attend_quantized({&g, head, call.q_back.data(), call.phases.data(), groups,
                                    kGroupsPerCall, softmax, mass});
        }
      }
      benchmark::DoNotOptimize(call.o.data());
    }
  }
  const double tokens = static_cast<double>(store.groups.size()) * kLanes * g.window * g.n_kv_heads;
  const double bytes = static_cast<double>(
      (bits == 0 ? g.full_window_bytes() : g.quantized_window_bytes()) / g.n_kv_heads / g.window);
  state.counters["ns_per_token"] = benchmark::Counter(
      tokens * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["GB/s"] =
      benchmark::Counter(tokens * bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

double smallest(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::string& isa : qevict::available_isas()) {
    if (isa == "reference") continue;
    const qevict::KernelTable* kernels = qevict::find_kernels(isa);
    for (const char name : {'A', 'B'}) {
      for (const int bits : {0, 2, 4}) {
        const std::string title = (bits == 0 ? std::string("full") : "int" + std::to_string(bits)) +
                                  "/" + isa + "/" + name;
        benchmark::RegisterBenchmark(
            title.c_str(),
            [=](benchmark::State& state) { decode(state, *kernels, name, bits, true); })
            ->Arg(100)
            ->Arg(1)
            ->Unit(benchmark::kMillisecond)
            ->ComputeStatistics("min", smallest);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
