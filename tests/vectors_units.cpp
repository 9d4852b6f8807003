#include "vectors_units.h"

#include <algorithm>
#include <cmath>

#include "kernels/codec.h"
#include "kernels/layout.h"
#include "kv/budget.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

void check_quantize_groups(const json& c, Check& check) {
  const int bits = c.at("params").at("bits");
  const Array x = read_array(c.at("inputs").at("x"));
  const std::vector<float> values = x.floats();
  const auto rows = static_cast<int>(x.dim(0));
  const auto n = static_cast<int>(x.dim(1));
  std::vector<std::uint8_t> codes(values.size());
  std::vector<fp16_t> scale(rows), zero(rows);
  std::vector<float> restored(values.size());
  for (int r = 0; r < rows; ++r) {
    quantize_group(&values[r * n], n, 1, bits, &codes[r * n], &scale[r], &zero[r]);
    for (int i = 0; i < n; ++i) {
      restored[r * n + i] =
          static_cast<float>(codes[r * n + i]) * fp16_to_fp32(scale[r]) + fp16_to_fp32(zero[r]);
    }
  }
  const json& e = c.at("expected");
  check.equal_all("codes", codes, read_array(e.at("codes")).ints());
  check.equal_all("scale", scale, read_array(e.at("scale_f16_bits")).ints());
  check.equal_all("zero", zero, read_array(e.at("zero_f16_bits")).ints());
  check.close_all("dequant", restored, read_array(e.at("dequant")).data,
                  read_tolerance(c.at("tolerance"), "dequant"));
}

void check_quantize_window(const json& c, Check& check) {
  const json& p = c.at("params");
  Geometry g;
  g.n_kv_heads = g.n_heads = p.at("H");
  g.head_dim = p.at("D");
  g.window = p.at("Omega");
  g.quant_bits = p.at("bits");
  const std::vector<float> k = read_array(c.at("inputs").at("k_pre")).floats();
  const std::vector<float> v = read_array(c.at("inputs").at("v")).floats();
  std::vector<std::uint8_t> block(g.quantized_window_bytes());
  std::vector<float> scratch(quantize_scratch_floats(g));
  quantize_window_pre_rope(g, k.data(), v.data(), block.data(), scratch.data());

  std::vector<std::uint8_t> k_codes, v_codes;
  std::vector<fp16_t> k_scale, k_zero, v_scale, v_zero;
  for (int h = 0; h < g.n_kv_heads; ++h) {
    const QuantBlock b = quant_block(g, block.data(), h);
    k_codes.insert(k_codes.end(), b.k_codes, b.k_codes + g.code_bytes_per_head());
    v_codes.insert(v_codes.end(), b.v_codes, b.v_codes + g.code_bytes_per_head());
    k_scale.insert(k_scale.end(), b.k_scale, b.k_scale + g.head_dim);
    k_zero.insert(k_zero.end(), b.k_zero, b.k_zero + g.head_dim);
    v_scale.insert(v_scale.end(), b.v_scale, b.v_scale + g.window);
    v_zero.insert(v_zero.end(), b.v_zero, b.v_zero + g.window);
  }
  const json& e = c.at("expected");
  const auto ints = [&](const char* name) { return read_array(e.at(name)).ints(); };
  check.equal_all("k_packed", k_codes, ints("k_packed"));
  check.equal_all("v_packed", v_codes, ints("v_packed"));
  check.equal_all("k_scale", k_scale, ints("k_scale_f16_bits"));
  check.equal_all("k_zero", k_zero, ints("k_zero_f16_bits"));
  check.equal_all("v_scale", v_scale, ints("v_scale_f16_bits"));
  check.equal_all("v_zero", v_zero, ints("v_zero_f16_bits"));
  std::vector<float> k_back(k.size()), v_back(v.size());
  dequantize_window(g, block.data(), k_back.data(), v_back.data());
  check.close_all("k_dequant", k_back, read_array(e.at("k_dequant")).data,
                  read_tolerance(c.at("tolerance"), "k_dequant"));
  check.close_all("v_dequant", v_back, read_array(e.at("v_dequant")).data,
                  read_tolerance(c.at("tolerance"), "v_dequant"));
}

void check_rope(const json& c, Check& check) {
  const json& p = c.at("params");
  const int d = p.at("D");
  const RopeSpec spec = RopeSpec::plain(read_pairing(p.at("kind")), d, p.at("base"));
  const Array x = read_array(c.at("inputs").at("x"));
  const std::vector<std::int64_t> positions = read_array(c.at("inputs").at("positions")).ints();
  std::vector<float> rotated = x.floats(), unrotated = rotated;
  std::vector<float> cos(d / 2), sin(d / 2);
  for (std::int64_t h = 0; h < x.dim(0); ++h) {
    for (std::size_t t = 0; t < positions.size(); ++t) {
      const std::size_t at = (static_cast<std::size_t>(h) * positions.size() + t) * d;
      rope_angles(spec, positions[t], cos.data(), sin.data());
      rope_rotate(spec, cos.data(), sin.data(), 1.0F, &rotated[at]);
      rope_rotate(spec, cos.data(), sin.data(), -1.0F, &unrotated[at]);
    }
  }
  const Tolerance tolerance = read_tolerance(c.at("tolerance"), "all");
  check.close_all("rotated", rotated, read_array(c.at("expected").at("rotated")).data, tolerance);
  check.close_all("unrotated", unrotated, read_array(c.at("expected").at("unrotated_of_x")).data,
                  tolerance);
}

void check_budget(const json& c, Check& check) {
  const json& p = c.at("params");
  Geometry g;
  g.n_kv_heads = g.n_heads = p.at("H");
  g.head_dim = p.at("D");
  g.window = p.at("Omega");
  g.quant_bits = p.at("bits");
  const int sinks = p.at("S");
  const int local = p.at("L");
  const auto total = static_cast<std::int64_t>(
      std::floor(p.at("beta").get<double>() * static_cast<double>(p.at("T").get<std::int64_t>())));
  const TierQuota quota = budget_quota(g, total, sinks, local, p.at("q"));
  const auto token = static_cast<std::int64_t>(g.token_bytes());
  const auto remaining = std::max<std::int64_t>(0, total - sinks - local);
  const json& e = c.at("expected");
  const auto equal = [&](const char* name, std::int64_t got) {
    check.equal(name, got, e.at(name));
  };
  equal("bytes_per_token", token);
  equal("b_fp", static_cast<std::int64_t>(g.full_window_bytes()));
  equal("b_q", static_cast<std::int64_t>(g.quantized_window_bytes()));
  equal("total_tokens", total);
  equal("budget_bytes", total * token);
  equal("remaining_tokens", remaining);
  equal("m_evict", remaining * token);
  equal("top_k_fp", quota.n_full);
  equal("n_q", quota.n_quantized);
  equal("over_budget_tokens", std::max<std::int64_t>(0, sinks + local - total));
  const double elements = 2.0 * g.n_kv_heads * g.head_dim * g.window;
  check.close("bits_per_element", 8.0 * static_cast<double>(g.quantized_window_bytes()) / elements,
              e.at("bits_per_element"), read_tolerance(c.at("tolerance"), "bits_per_element"));

  // The commands' solver must agree wherever it neither raises nor leaves the cache uncompressed.
  CacheConfig config;
  config.window = g.window;
  config.quant_bits = g.quant_bits;
  config.quant_share = p.at("q");
  config.n_sink = sinks;
  config.n_local = local;
  config.budget = {KvBudget::Unit::Ratio, p.at("beta")};
  const auto plan = solve_budget(g, 1, config, p.at("T"), 0);
  if (!plan) return check.fail("solver: " + plan.error().message);
  if (plan->raised || plan->uncompressed) return;
  check.equal("solver's total_tokens", plan->total_tokens, total);
  check.equal("solver's n_full", plan->quota.n_full, quota.n_full);
  check.equal("solver's n_quantized", plan->quota.n_quantized, quota.n_quantized);
}

void check_geometry(const json& c, Check& check) {
  const json& p = c.at("params");
  const std::int64_t n = p.at("n");
  const int sinks = p.at("S");
  const int local = p.at("L");
  const int omega = p.at("Omega");
  const json& e = c.at("expected");
  const std::int64_t floor = evictable_windows(n, sinks, local, omega, LocalRule::Floor);
  check.equal("evictable_windows", floor, e.at("evictable_windows"));
  check.equal("local_begin", sinks + omega * floor, e.at("local_begin"));
  check.equal("local_tokens", n - sinks - omega * floor, e.at("local_tokens"));
  check.equal("ceil rule", evictable_windows(n, sinks, local, omega, LocalRule::Ceil),
              e.at("evictable_windows_ceil_rule"));
}

}  // namespace

RopePairing read_pairing(const json& kind) {
  const auto text = kind.get<std::string>();
  if (text == "neox") return RopePairing::Neox;
  if (text == "norm") return RopePairing::Interleaved;
  throw std::runtime_error("unknown rope kind '" + text + "'");
}

UnitCheck find_unit_check(const std::string& op) {
  static const struct {
    const char* op;
    UnitCheck check;
  } table[] = {
      {"quantize_groups", check_quantize_groups},
      {"quantize_window", check_quantize_window},
      {"rope", check_rope},
      {"budget", check_budget},
      {"geometry", check_geometry},
      {"route", check_route},
      {"mixed_attention", check_mixed_attention},
      {"layer_stream", check_layer_stream},
      {"fmm", check_missed_mass},
      {"churn", check_churn},
      {"qsa_rq", check_agreement},
      {"global_lir", check_revivals},
  };
  for (const auto& entry : table) {
    if (op == entry.op) return entry.check;
  }
  return nullptr;
}

}  // namespace qevict::vectors
