// Op `layer_stream`: one layer end to end, KvCache plus TieredAttention, with every kernel table.
#include <algorithm>
#include <cmath>
#include <map>

#include "attention/tiered_attention.h"
#include "kernels/layout.h"
#include "kv/kv_cache.h"
#include "policies/registry.h"
#include "vectors_units.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

// Tokens of the case before RoPE: attention rotates them itself.
struct Stream {
  Geometry g;
  RopeSpec rope;
  int prompt = 0, steps = 0;
  std::vector<float> q, k, v;  // [token][head][D]

  QkvBlock block(int first, int n) const {
    const std::size_t q_row = static_cast<std::size_t>(g.n_heads) * g.head_dim;
    const std::size_t kv_row = static_cast<std::size_t>(g.n_kv_heads) * g.head_dim;
    return {q.data() + first * q_row, k.data() + first * kv_row, v.data() + first * kv_row, n};
  }
};

// [heads][n][D] -> [n][heads][D]; un-rotated in double when asked.
std::vector<float> token_major(const Array& x, const RopeSpec* unrotate) {
  const auto heads = static_cast<int>(x.dim(0)), n = static_cast<int>(x.dim(1)),
             d = static_cast<int>(x.dim(2));
  std::vector<float> out(x.data.size());
  for (int h = 0; h < heads; ++h) {
    for (int t = 0; t < n; ++t) {
      const double* in = &x.data[(static_cast<std::size_t>(h) * n + t) * d];
      float* to = &out[(static_cast<std::size_t>(t) * heads + h) * d];
      for (int c = 0; c < d; ++c) to[c] = static_cast<float>(in[c]);
      for (int i = 0; unrotate != nullptr && i < d / 2; ++i) {
        const bool neox = unrotate->pairing == RopePairing::Neox;
        const int a = neox ? i : 2 * i;
        const int b = neox ? i + d / 2 : 2 * i + 1;
        const double angle = t * unrotate->inv_freq[i];
        to[a] = static_cast<float>(in[a] * std::cos(angle) + in[b] * std::sin(angle));
        to[b] = static_cast<float>(in[b] * std::cos(angle) - in[a] * std::sin(angle));
      }
    }
  }
  return out;
}

Stream read_stream(const json& c) {
  const json& p = c.at("params");
  Stream s;
  s.g.n_heads = p.at("Hq");
  s.g.n_kv_heads = p.at("H");
  s.g.head_dim = p.at("D");
  s.g.window = p.at("Omega");
  s.g.quant_bits = p.at("bits");
  s.g.pairing = read_pairing(p.at("rope_kind"));
  s.rope = RopeSpec::plain(s.g.pairing, s.g.head_dim, p.at("rope_base"));
  s.prompt = p.at("P");
  s.steps = p.at("G");
  s.q = token_major(read_array(c.at("inputs").at("q")), &s.rope);
  s.k = token_major(read_array(c.at("inputs").at("k_post")), &s.rope);
  s.v = token_major(read_array(c.at("inputs").at("v")), nullptr);
  return s;
}

CacheConfig read_config(const json& p) {
  CacheConfig config;
  config.n_sink = p.at("S");
  config.n_local = p.at("L");
  config.window = p.at("Omega");
  config.quant_bits = p.at("bits");
  config.quant_share = p.at("q");
  config.promotion = p.at("promotion");
  config.budget = {KvBudget::Unit::Ratio, p.at("beta")};
  return config;
}

struct Recorded {
  std::vector<LayerEvent> events;
  std::vector<std::map<WindowId, double>> scores;       // candidates and local windows, by event
  std::map<WindowId, std::vector<std::uint8_t>> codes;  // blocks right after the first demotion
  std::vector<float> out;                               // [step][Hq][D]
};

void record(const KvCache& cache, const LayerEvent& event, Recorded& r) {
  const LayerCache& layer = cache.layer(0);
  r.events.push_back(event);
  std::map<WindowId, double> scores(event.scores.begin(), event.scores.end());
  const WindowId first = (layer.local_begin() - cache.config().n_sink) / cache.geometry().window;
  for (std::size_t i = 0; i < layer.local_mass().size(); ++i) {
    scores[first + static_cast<WindowId>(i)] = layer.local_mass()[i];
  }
  r.scores.push_back(scores);
  for (const WindowId id : event.first_demoted) {
    const auto ids = layer.quantized().ids();
    const auto slot = static_cast<SlotId>(std::ranges::find(ids, id) - ids.begin());
    r.codes[id].resize(layer.quantized().window_bytes());
    layer.quantized().load_block(slot, r.codes[id].data());
  }
}

Recorded run(const Stream& s, const json& p, const KernelTable& kernels, Check& check) {
  Recorded r;
  auto made = KvCache::create(s.g, 1, s.rope, read_config(p), *find_policy("qevict"));
  if (!made) throw std::runtime_error(made.error().message);
  KvCache& cache = **made;
  cache.set_trace([&](const LayerEvent& event) { record(cache, event, r); });
  TieredAttention attention(cache, kernels, 1);
  if (const Status ok = cache.begin_prompt(s.prompt, s.steps); !ok) {
    throw std::runtime_error(ok.error().message);
  }
  check.equal("context tokens", cache.budget().context_tokens, p.at("T"));
  check.equal("n_full", cache.budget().quota.n_full, p.at("top_k_fp"));
  check.equal("n_quantized", cache.budget().quota.n_quantized, p.at("n_q"));
  constexpr int kBlock = 48;  // not a divisor of the prompt
  attention.begin_prompt(s.prompt, kBlock);
  attention.begin_layer(0);
  std::vector<float> out(static_cast<std::size_t>(kBlock) * s.g.n_heads * s.g.head_dim);
  for (int first = 0; first < s.prompt; first += kBlock) {
    const int n = std::min(kBlock, s.prompt - first);
    attention.set_block(first, n);
    attention.prepare(0, s.block(first, n), 0, 1);
    attention.attend(0, out.data(), 0, 1);
  }
  attention.finish_layer(0);
  attention.end_prompt();
  cache.commit_prompt();
  out.resize(static_cast<std::size_t>(s.g.n_heads) * s.g.head_dim);
  for (int step = 0; step < s.steps; ++step) {
    attention.begin_step();
    cache.begin_step();
    attention.prepare(0, s.block(s.prompt + step, 1), 0, 1);
    attention.attend(0, out.data(), 0, 1);
    r.out.insert(r.out.end(), out.begin(), out.end());
    cache.end_step();
  }
  return r;
}

void check_event(const json& e, const LayerEvent& got, const std::map<WindowId, double>& scores,
                 Tolerance tolerance, Check& check) {
  const auto equal = [&](const char* name, const std::vector<WindowId>& ids) {
    check.equal_all(name, ids, e.at(name).get<std::vector<std::int64_t>>());
  };
  check.equal("event", got.event, e.at("event"));
  check.equal("after_decode_step", got.step, e.at("after_decode_step"));
  check.equal("n", got.n_tokens, e.at("n"));
  equal("F", got.full);
  equal("Q", got.quantized);
  equal("E_new", got.evicted);
  equal("promoted", got.promoted);
  equal("demoted_fresh", got.first_demoted);
  equal("reactivated", got.reactivated);
  equal("ledger_dormant", got.dormant);
  const json& bytes = e.at("bytes");
  const auto equal_bytes = [&](const char* name, std::size_t value) {
    check.equal(std::string(name) + " bytes", static_cast<std::int64_t>(value), bytes.at(name));
  };
  equal_bytes("sink", got.bytes.sink);
  equal_bytes("local", got.bytes.local);
  equal_bytes("F", got.bytes.full);
  equal_bytes("Q", got.bytes.quantized);
  equal_bytes("dormant", got.dormant_bytes);
  equal_bytes("total", got.bytes.total());
  const std::vector<double> expected = read_array(e.at("score")).data;
  for (const auto& [id, score] : scores) {
    check.close("score of window " + std::to_string(id), score,
                expected.at(static_cast<std::size_t>(id)), tolerance);
  }
}

// Codes: at least 99.9 % equal, the rest off by one. Grids of keys: within 1 fp16 ulp. Grids of
// values, whose input is exact: equal.
void check_codes(const json& expected, const Geometry& g, Recorded& r, Check& check) {
  std::int64_t codes = 0, different = 0;
  for (const json& e : expected) {
    const auto id = e.at("window").get<WindowId>();
    check.set_context("window " + std::to_string(id));
    if (!r.codes.contains(id)) {
      check.fail("never quantised");
      continue;
    }
    std::size_t at[6] = {};
    const std::vector<std::int64_t> parts[6] = {
        read_array(e.at("k_packed")).ints(),         read_array(e.at("v_packed")).ints(),
        read_array(e.at("k_scale_f16_bits")).ints(), read_array(e.at("k_zero_f16_bits")).ints(),
        read_array(e.at("v_scale_f16_bits")).ints(), read_array(e.at("v_zero_f16_bits")).ints()};
    const auto compare_codes = [&](const std::uint8_t* got, int part) {
      for (std::size_t i = 0; i < g.code_bytes_per_head(); ++i, ++at[part]) {
        const auto want = static_cast<int>(parts[part].at(at[part]));
        for (int shift = 0; shift < 8; shift += g.quant_bits, ++codes) {
          const int mask = (1 << g.quant_bits) - 1;
          const int off = std::abs((got[i] >> shift & mask) - (want >> shift & mask));
          different += off != 0;
          if (off > 1) check.fail("a code is off by " + std::to_string(off));
        }
      }
    };
    const auto compare_grid = [&](const fp16_t* got, int n, int part, int ulp) {
      for (int i = 0; i < n; ++i, ++at[part]) {
        if (std::abs(got[i] - parts[part].at(at[part])) > ulp) check.fail("a grid differs");
      }
    };
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const QuantBlock b = quant_block(g, r.codes[id].data(), h);
      compare_codes(b.k_codes, 0);
      compare_codes(b.v_codes, 1);
      compare_grid(b.k_scale, g.head_dim, 2, 1);
      compare_grid(b.k_zero, g.head_dim, 3, 1);
      compare_grid(b.v_scale, g.window, 4, 0);
      compare_grid(b.v_zero, g.window, 5, 0);
    }
  }
  check.set_context("codes");
  if (static_cast<double>(different) > 0.001 * static_cast<double>(codes)) {
    check.fail(std::to_string(different) + " of " + std::to_string(codes) + " differ");
  }
}

}  // namespace

void check_layer_stream(const json& c, Check& check) {
  const Stream stream = read_stream(c);
  const json& e = c.at("expected");
  for (const std::string& isa : available_isas()) {
    check.set_context(isa);
    Recorded r = run(stream, c.at("params"), *find_kernels(isa), check);
    check.close_all("out", r.out, read_array(e.at("out")).data,
                    read_tolerance(c.at("tolerance"), "out"));
    check.equal("events", static_cast<std::int64_t>(r.events.size()),
                static_cast<std::int64_t>(e.at("events").size()));
    std::int64_t promoted = 0, fresh = 0, reactivated = 0, evicted = 0;
    for (std::size_t i = 0; i < std::min(r.events.size(), e.at("events").size()); ++i) {
      check.set_context(isa + " event " + std::to_string(i));
      check_event(e.at("events")[i], r.events[i], r.scores[i],
                  read_tolerance(c.at("tolerance"), "score"), check);
      promoted += static_cast<std::int64_t>(r.events[i].promoted.size());
      fresh += static_cast<std::int64_t>(r.events[i].first_demoted.size());
      reactivated += static_cast<std::int64_t>(r.events[i].reactivated.size());
      evicted += static_cast<std::int64_t>(r.events[i].evicted.size());
    }
    check.set_context(isa + " totals");
    check.equal("promoted", promoted, e.at("totals").at("promoted"));
    check.equal("demoted_fresh", fresh, e.at("totals").at("demoted_fresh"));
    check.equal("reactivated", reactivated, e.at("totals").at("reactivated"));
    check.equal("E_new", evicted, e.at("totals").at("E_new"));
    check_codes(e.at("first_codes"), stream.g, r, check);
  }
}

}  // namespace qevict::vectors
