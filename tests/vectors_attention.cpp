// Op `mixed_attention`: one query over sinks, local, Full and Quantized windows, with every kernel
// table.
#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/kernels.h"
#include "kernels/layout.h"
#include "kv/recent_store.h"
#include "kv/tier_slab.h"
#include "vectors_units.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

// The case's cache: what the vectors call F is split into Full windows and the recent store.
struct Scene {
  Geometry g;
  RopeSpec rope;
  int sinks = 0;
  TokenPos local_begin = 0;
  RecentStore recent;
  TierSlab full{Geometry{.n_heads = 1, .n_kv_heads = 1, .head_dim = 4}, Tier::Full};
  TierSlab quantized{Geometry{.n_heads = 1, .n_kv_heads = 1, .head_dim = 4}, Tier::Quantized};
  std::vector<float> q;  // scaled
  std::vector<TokenPos> local_positions;
};

void add_recent(Scene& s, const std::vector<float>& k, const std::vector<float>& v, int row,
                int n_rows) {
  const int to = s.recent.push_row();
  for (int h = 0; h < s.g.n_kv_heads; ++h) {
    const std::size_t at = (static_cast<std::size_t>(h) * n_rows + row) * s.g.head_dim;
    s.recent.write(to, h, &k[at], &v[at]);
  }
}

void add_full(Scene& s, const std::vector<float>& k, const std::vector<float>& v, int row,
              int n_rows, WindowId id) {
  std::vector<fp16_t> kw, vw;
  for (int h = 0; h < s.g.n_kv_heads; ++h) {
    const std::size_t at = (static_cast<std::size_t>(h) * n_rows + row) * s.g.head_dim;
    for (int i = 0; i < s.g.window * s.g.head_dim; ++i) {
      kw.push_back(fp32_to_fp16(k[at + i]));
      vw.push_back(fp32_to_fp16(v[at + i]));
    }
  }
  const SlotId slot = s.full.remove_and_grow({}, 1);
  s.full.store_full(slot, kw.data(), vw.data());
  s.full.set_record(slot, id, 0.0, 0.0F);
}

void add_quantized(Scene& s, const json& in) {
  const std::vector<std::int64_t> ids = read_array(in.at("q_windows")).ints();
  const auto ints = [&](const char* name) { return read_array(in.at(name)).ints(); };
  const auto k_codes = ints("q_k_packed"), k_scale = ints("q_k_scale_f16_bits"),
             k_zero = ints("q_k_zero_f16_bits"), v_codes = ints("q_v_packed"),
             v_scale = ints("q_v_scale_f16_bits"), v_zero = ints("q_v_zero_f16_bits");
  std::vector<std::uint8_t> block(s.g.quantized_window_bytes());
  for (std::size_t w = 0; w < ids.size(); ++w) {
    for (int h = 0; h < s.g.n_kv_heads; ++h) {
      const QuantBlock b = quant_block(s.g, block.data(), h);
      const auto part = [&](const std::vector<std::int64_t>& from, auto* to, std::size_t n) {
        const std::size_t at = (w * s.g.n_kv_heads + h) * n;
        for (std::size_t i = 0; i < n; ++i) {
          to[i] = static_cast<std::remove_reference_t<decltype(*to)>>(from[at + i]);
        }
      };
      part(k_codes, b.k_codes, s.g.code_bytes_per_head());
      part(v_codes, b.v_codes, s.g.code_bytes_per_head());
      part(k_scale, b.k_scale, s.g.head_dim);
      part(k_zero, b.k_zero, s.g.head_dim);
      part(v_scale, b.v_scale, s.g.window);
      part(v_zero, b.v_zero, s.g.window);
    }
    const SlotId slot = s.quantized.remove_and_grow({}, 1);
    s.quantized.store_block(slot, block.data());
    s.quantized.set_record(slot, static_cast<WindowId>(ids[w]), 0.0, 0.0F);
  }
}

Scene make_scene(const json& c) {
  const json& p = c.at("params");
  const json& in = c.at("inputs");
  Scene s;
  s.g.n_heads = p.at("Hq");
  s.g.n_kv_heads = p.at("H");
  s.g.head_dim = p.at("D");
  s.g.window = p.at("Omega");
  s.g.quant_bits = p.at("bits");
  s.g.pairing = read_pairing(p.at("rope_kind"));
  s.rope = RopeSpec::plain(s.g.pairing, s.g.head_dim, p.at("rope_base"));
  s.sinks = p.at("S");
  s.full = TierSlab(s.g, Tier::Full);
  s.quantized = TierSlab(s.g, Tier::Quantized);
  s.q = read_array(in.at("q")).floats();
  for (float& x : s.q) x *= 1.0F / std::sqrt(static_cast<float>(s.g.head_dim));

  const std::vector<std::int64_t> positions = read_array(in.at("f_positions")).ints();
  const std::vector<float> k = read_array(in.at("f_k_post")).floats();
  const std::vector<float> v = read_array(in.at("f_v")).floats();
  const auto n = static_cast<int>(positions.size());
  // Local: the last two windows that begin in the trailing run without a gap.
  int run = n - 1;
  while (run > s.sinks && positions[run - 1] == positions[run] - 1) --run;
  s.local_begin = static_cast<TokenPos>(positions.back() - s.sinks) / s.g.window * s.g.window +
                  s.sinks - s.g.window;
  while (s.local_begin < positions[run]) s.local_begin += s.g.window;
  s.recent = RecentStore(s.g, s.sinks, n);
  int row = 0;
  for (; row < n && positions[row] < s.sinks; ++row) add_recent(s, k, v, row, n);
  for (; row < n && positions[row] < s.local_begin; row += s.g.window) {
    add_full(s, k, v, row, n, static_cast<WindowId>((positions[row] - s.sinks) / s.g.window));
  }
  for (; row < n; ++row) {
    add_recent(s, k, v, row, n);
    s.local_positions.push_back(static_cast<TokenPos>(positions[row]));
  }
  add_quantized(s, in);
  return s;
}

struct Attended {
  std::vector<float> out;                        // [Hq][D]
  std::map<WindowId, std::vector<double>> mass;  // [Hq] a window
  std::vector<float> sink_mass;                  // [Hq]
};

// Sums and maxima that the kernels leave, before the final maximum is known.
struct Sums {
  std::vector<float> window_sum, group_max, token_sum, token_max;
};

void attend_head(const Scene& s, const KernelTable& t, const WindowPhases& phases, int h,
                 const SoftmaxState& state, Sums& quantized, Sums& full, Sums& recent) {
  const Geometry& g = s.g;
  const int gs = g.group_size();
  const int d = g.head_dim;
  const float* q = s.q.data() + static_cast<std::ptrdiff_t>(h) * gs * d;
  const auto sized = [&](Sums& sums, std::size_t groups) {
    sums.window_sum.assign(groups * gs * kLanes, 0.0F);
    sums.group_max.assign(groups * gs, 0.0F);
  };
  std::vector<float> cos(static_cast<std::size_t>(g.window) * d / 2), sin(cos.size());
  for (int j = 0; j < g.window; ++j) rope_angles(s.rope, j, &cos[j * d / 2], &sin[j * d / 2]);
  std::vector<float> q_back(query_back_floats(g));
  t.rotate_queries_back(g, q, cos.data(), sin.data(), q_back.data());
  const std::span<const GroupRef> groups = s.quantized.groups();
  std::vector<float> angles(groups.size() * d * kLanes);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    t.window_phases(phases, s.quantized.ids().data() + i * kLanes, groups[i].lanes,
                    &angles[i * d * kLanes]);
  }
  sized(quantized, groups.size());
  t.attend_quantized({&g,
                      h,
                      q_back.data(),
                      angles.data(),
                      groups.data(),
                      static_cast<int>(groups.size()),
                      state,
                      {quantized.window_sum.data(), quantized.group_max.data(), 1.0F}});
  sized(full, s.full.groups().size());
  t.attend_full({&g,
                 h,
                 q,
                 s.full.groups().data(),
                 static_cast<int>(s.full.groups().size()),
                 state,
                 {full.window_sum.data(), full.group_max.data(), 1.0F}});
  recent.token_sum.assign(static_cast<std::size_t>(gs) * s.recent.ref().capacity, 0.0F);
  recent.token_max.assign(static_cast<std::size_t>(gs), 0.0F);
  t.attend_recent(
      {&g, h, q, s.recent.ref(), state, recent.token_sum.data(), recent.token_max.data(), 1.0F});
}

Attended attend(const Scene& s, const KernelTable& t) {
  const Geometry& g = s.g;
  const int gs = g.group_size();
  const int d = g.head_dim;
  Attended result;
  result.sink_mass.assign(g.n_heads, 0.0F);
  const WindowPhases phases(s.rope, s.sinks, g.window, 4096);
  for (int h = 0; h < g.n_kv_heads; ++h) {
    std::vector<float> o(static_cast<std::size_t>(gs) * d), m(gs), l(gs);
    const SoftmaxState state{o.data(), m.data(), l.data()};
    softmax_reset(state, gs, d);
    Sums quantized, full, recent;
    attend_head(s, t, phases, h, state, quantized, full, recent);
    for (int j = 0; j < gs; ++j) {
      const int head = h * gs + j;
      const auto probability = [&](float sum, float max) {
        return static_cast<double>(sum) * std::exp(double{max} - m[j]) / l[j];
      };
      const auto add = [&](WindowId id, double p) {
        result.mass[id].resize(g.n_heads);
        result.mass[id][head] += p;
      };
      const auto add_slab = [&](const TierSlab& slab, const Sums& sums) {
        for (SlotId slot = 0; slot < slab.size(); ++slot) {
          const std::size_t at = static_cast<std::size_t>(slot / kLanes) * gs + j;
          add(slab.ids()[slot],
              probability(sums.window_sum[at * kLanes + slot % kLanes], sums.group_max[at]));
        }
      };
      add_slab(s.quantized, quantized);
      add_slab(s.full, full);
      for (int row = 0; row < s.recent.n_tokens(); ++row) {
        const double p = probability(
            recent.token_sum[static_cast<std::size_t>(j) * s.recent.ref().capacity + row],
            recent.token_max[j]);
        if (row < s.recent.n_sinks()) {
          result.sink_mass[head] += static_cast<float>(p);
        } else {
          add((s.local_positions[row - s.recent.n_sinks()] - s.sinks) / g.window, p);
        }
      }
      for (int c = 0; c < d; ++c) result.out.push_back(o[j * d + c] / l[j]);
    }
  }
  return result;
}

}  // namespace

void check_mixed_attention(const json& c, Check& check) {
  const Scene scene = make_scene(c);
  const json& e = c.at("expected");
  const std::vector<std::int64_t> windows = read_array(e.at("windows")).ints();
  const Tolerance mass = read_tolerance(c.at("tolerance"), "mass");
  for (const std::string& isa : available_isas()) {
    check.set_context(isa);
    const Attended got = attend(scene, *find_kernels(isa));
    check.close_all("out", got.out, read_array(e.at("out")).data,
                    read_tolerance(c.at("tolerance"), "out"));
    std::vector<float> by_head, mean;
    for (const std::int64_t w : windows) {
      const auto it = got.mass.find(static_cast<WindowId>(w));
      if (it == got.mass.end()) return check.fail("no mass for window " + std::to_string(w));
      double sum = 0.0;
      for (const double p : it->second) {
        by_head.push_back(static_cast<float>(p));
        sum += p;
      }
      mean.push_back(static_cast<float>(sum / scene.g.n_heads));
    }
    check.equal("windows with mass", static_cast<std::int64_t>(got.mass.size()),
                static_cast<std::int64_t>(windows.size()));
    check.close_all("mass", by_head, read_array(e.at("mass")).data, mass);
    check.close_all("mass_mean", mean, read_array(e.at("mass_mean")).data, mass);
    check.close_all("sink_mass", got.sink_mass, read_array(e.at("sink_mass")).data, mass);
  }
}

}  // namespace qevict::vectors
