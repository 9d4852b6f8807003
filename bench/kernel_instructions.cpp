// Runs one hot kernel once on a fixed scene, for an instruction count without noise.
//
//   kernel_instructions --list          {"compiler": ..., "kernels": {ISA: [NAME, ...]}}
//   kernel_instructions ISA NAME        prepares the scene, then runs the kernel inside
//                                       qevict_measured(): callgrind
//                                       --toggle-collect=qevict_measured
//
// `./dev instructions` does that for every kernel and compares with bench/instructions.json.
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/kernel_scenes.h"
#include "kernels/codec.h"
#include "kernels/dense.h"
#include "kernels/kernels.h"

extern "C" __attribute__((noinline)) void qevict_measured(const std::function<void()>* pass) {
  (*pass)();
}

namespace {

using namespace qevict;
using cli::KernelShape;

// What callgrind decodes; its CPU has no AVX-512, so Highway does not offer that one there.
const std::vector<std::string> kIsas = {"reference", "sse4", "avx2"};
constexpr KernelShape kShapes[] = {{.head_dim = 64, .group = 7, .tokens = 512},
                                   {.head_dim = 128, .group = 4, .tokens = 512}};

struct Kernel {
  std::string name;
  bool any_isa;  // the same code whatever the instruction set
  std::function<std::function<void()>(const KernelTable&)> prepare;
};

std::string shape_name(const KernelShape& s) {
  return "_d" + std::to_string(s.head_dim) + "_g" + std::to_string(s.group);
}

// 72 recent tokens in 80 rows.
std::function<void()> recent(const KernelTable& table, const KernelShape& shape) {
  struct Scene {
    Geometry g;
    std::vector<fp16_t> k, v;
    std::vector<float> q, o, m, l, sum, max;
  };
  constexpr int kCapacity = 80;
  const auto s = std::make_shared<Scene>();
  s->g = shape.geometry(cli::tier_formats()[0]);
  const auto heads = static_cast<std::size_t>(s->g.group_size());
  for (int i = 0; i < s->g.n_kv_heads * s->g.head_dim * kCapacity; ++i) {
    s->k.push_back(fp32_to_fp16(static_cast<float>(i % 97) / 97.0F - 0.5F));
  }
  s->v = s->k;
  s->q.assign(heads * s->g.head_dim, 0.1F);
  s->o.resize(s->q.size());
  s->m.resize(heads);
  s->l.resize(heads);
  s->sum.resize(heads * kCapacity);
  s->max.resize(heads);
  return [s, &table] {
    const SoftmaxState state{s->o.data(), s->m.data(), s->l.data()};
    softmax_reset(state, s->g.group_size(), s->g.head_dim);
    table.attend_recent({&s->g,
                         1,
                         s->q.data(),
                         {s->k.data(), s->v.data(), kCapacity, 72},
                         state,
                         s->sum.data(),
                         s->max.data(),
                         1.0F});
  };
}

std::function<void()> rotate(const KernelTable& table, const KernelShape& shape) {
  const Geometry g = shape.geometry(cli::tier_formats()[0]);
  const auto n = static_cast<std::size_t>(g.group_size()) * g.head_dim;
  const std::size_t angles = static_cast<std::size_t>(g.window) * g.head_dim / 2;
  // Angles, queries, and the rotated copies.
  const auto x = std::make_shared<std::vector<float>>(angles + n + query_back_floats(g), 0.5F);
  return [=, &table] {
    float* q = x->data() + angles;
    table.rotate_queries_back(g, q, x->data(), x->data(), q + n);
  };
}

// The un-fused passes over 512 keys, 8 rows.
std::function<void()> dense(const KernelTable& table, const KernelShape& shape) {
  struct Scene {
    std::vector<fp16_t> rows;
    std::vector<float> q, s, out;
    std::unique_ptr<void, void (*)(void*)> scratch{nullptr, std::free};
  };
  const auto s = std::make_shared<Scene>();
  const int d = shape.head_dim;
  for (int i = 0; i < 512 * d; ++i) {
    s->rows.push_back(fp32_to_fp16(static_cast<float>(i % 97) / 97.0F - 0.5F));
  }
  s->q.assign(8 * d, 0.1F);
  s->s.resize(8 * 512);
  s->out.resize(8 * d);
  s->scratch.reset(std::aligned_alloc(64, (dense_scratch_bytes(8, d) + 63) / 64 * 64));
  return [=, &table] {
    table.dense->scores(
        {s->q.data(), d, 8, 0.1F, s->rows.data(), 512, d, s->s.data(), 512, s->scratch.get()});
    for (int i = 0; i < 8; ++i) table.dense->softmax_row(s->s.data() + 512 * i, 512, 512);
    table.dense->values(
        {s->s.data(), 512, 8, s->rows.data(), 512, d, s->out.data(), d, false, s->scratch.get()});
  };
}

// One window: quantised for the first time, or brought back.
std::function<void()> codec(const cli::TierFormat& format, bool restore) {
  struct Scene {
    Geometry g;
    RopeSpec rope;
    std::vector<fp16_t> k, v;
    std::vector<std::uint8_t> block;
    std::vector<float> scratch;
    std::vector<fp16_t> range_keys, range_values;
    QuantRange range() const { return {range_keys.data(), range_values.data()}; }
  };
  const auto s = std::make_shared<Scene>();
  s->g = kShapes[0].geometry(format);
  // From -1, 2 wide, for formats whose grids are integers.
  for (int i = 0; i < s->g.n_kv_heads * 2 * s->g.head_dim; ++i) {
    s->range_keys.push_back(fp32_to_fp16(i / s->g.head_dim % 2 == 0 ? -1.0F : 2.0F));
  }
  for (int i = 0; i < s->g.n_kv_heads * 2; ++i) {
    s->range_values.push_back(fp32_to_fp16(i % 2 == 0 ? -1.0F : 2.0F));
  }
  s->rope = RopeSpec::plain(s->g.pairing, s->g.head_dim, 1e6);
  for (int i = 0; i < s->g.n_kv_heads * s->g.window * s->g.head_dim; ++i) {
    s->k.push_back(fp32_to_fp16(static_cast<float>(i * 31 % 97) / 97.0F - 0.5F));
  }
  s->v = s->k;
  s->block.resize(s->g.quantized_window_bytes());
  s->scratch.resize(quantize_scratch_floats(s->g));
  const auto quantize = [s] {
    quantize_window(s->g, s->rope, 800, s->k.data(), s->v.data(), s->block.data(),
                    s->scratch.data(), s->range());
  };
  if (!restore) return quantize;
  quantize();
  return [s] {
    restore_window(s->g, s->rope, 800, s->block.data(), s->k.data(), s->v.data(), s->scratch.data(),
                   s->range());
  };
}

std::vector<Kernel> kernels() {
  std::vector<Kernel> all;
  for (const KernelShape& shape : kShapes) {
    for (const cli::TierFormat& format : cli::tier_formats()) {
      all.push_back({"decode_" + std::string(format.name) + shape_name(shape), false,
                     [&](const KernelTable& table) -> std::function<void()> {
                       const auto scene = std::make_shared<cli::TierScene>(shape, format, 1);
                       return [scene, &table] { scene->attend(table); };
                     }});
    }
    all.push_back({"decode_recent" + shape_name(shape), false,
                   [&](const KernelTable& table) { return recent(table, shape); }});
    all.push_back({"rotate_queries" + shape_name(shape), false,
                   [&](const KernelTable& table) { return rotate(table, shape); }});
    all.push_back({"prefill" + shape_name(shape), false,
                   [&](const KernelTable& table) -> std::function<void()> {
                     const auto scene = std::make_shared<cli::PromptScene>(shape, 64);
                     return [scene, &table] { scene->attend(table); };
                   }});
  }
  all.push_back({"dense_d64", false, [](const KernelTable& t) { return dense(t, kShapes[0]); }});
  for (const cli::TierFormat& format : cli::tier_formats()) {
    if (!format.quantized) continue;
    const std::string name(format.name);
    all.push_back(
        {"quantize_" + name, true, [&](const KernelTable&) { return codec(format, false); }});
    all.push_back(
        {"restore_" + name, true, [&](const KernelTable&) { return codec(format, true); }});
  }
  return all;
}

int list() {
  std::printf("{\"compiler\": \"%s\", \"kernels\": {", __VERSION__);
  for (const std::string& isa : kIsas) {
    std::printf("%s\"%s\": [", isa == kIsas[0] ? "" : ", ", isa.c_str());
    const char* comma = "";
    for (const Kernel& kernel : kernels()) {
      if (kernel.any_isa && isa != kIsas[0]) continue;
      std::printf("%s\"%s\"", comma, kernel.name.c_str());
      comma = ", ";
    }
    std::printf("]");
  }
  std::printf("}}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--list") return list();
  if (argc == 3) {
    const KernelTable* table = find_kernels(argv[1]);
    for (const Kernel& kernel : kernels()) {
      if (table == nullptr || kernel.name != argv[2]) continue;
      const std::function<void()> pass = kernel.prepare(*table);
      qevict_measured(&pass);
      return 0;
    }
  }
  std::fprintf(stderr, "usage: kernel_instructions --list | ISA NAME (of those listed)\n");
  return 2;
}
