// Ops `kvquant_key` and `kvquant_value`.
#include <algorithm>
#include <cmath>

#include "kernels/kvquant.h"
#include "vectors_peers.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

struct Case {
  int t = 0, c = 0, bits = 0, first_fp16 = 0;
  double sparsity = 1.0;
  bool uniform = false, normal_float = false;
  std::vector<float> x, lut;
};

Case read_case(const json& file, const json& expected) {
  const json& p = file.at("params");
  Case out;
  out.t = p.at("T");
  out.c = p.at("C");
  out.bits = expected.at("bits");
  out.first_fp16 = p.at("first_few_fp16");
  out.sparsity = p.at("sparsity_threshold");
  out.uniform = !p.at("non_uniform").get<bool>();
  out.normal_float = p.at("normal_float");
  out.x = read_array(file.at("inputs").at("x")).floats();
  if (!out.uniform) out.lut = read_array(expected.at("lut")).floats();
  return out;
}

// True when x lies within 1e-4 of the middle between two codebook entries: it may go either way.
bool near_middle(const std::vector<float>& lut, float normalised) {
  std::vector<float> distance;
  for (const float entry : lut) distance.push_back(std::fabs(entry - normalised));
  std::ranges::sort(distance);
  return distance.size() > 1 && distance[1] - distance[0] < 2e-4F;
}

class Comparison {
 public:
  Comparison(const json& file, const json& expected, Check& check)
      : check_(check), expected_(expected), dequant_(read_array(expected.at("dequant")).data) {
    const json& t = file.at("tolerance");
    tolerance_ = {t.at("dequant_atol").get<double>(), t.at("dequant_rtol").get<double>()};
  }
  void value(std::size_t at, fp16_t got, bool ambiguous) {
    if (ambiguous) return;
    check_.close("dequant[" + std::to_string(at) + "]", fp16_to_fp32(got), dequant_.at(at),
                 tolerance_);
  }
  void outlier(int token, int channel) {
    outliers_.push_back(token);
    outliers_.push_back(channel);
  }
  void finish() {
    if (!expected_.contains("outliers")) return;
    std::vector<std::int64_t> wanted;
    for (const json& pair : expected_.at("outliers")) {
      wanted.push_back(pair.at(0));
      wanted.push_back(pair.at(1));
    }
    check_.equal_all("outliers", outliers_, wanted);
  }

 private:
  Check& check_;
  const json& expected_;
  std::vector<double> dequant_;
  Tolerance tolerance_;
  std::vector<std::int64_t> outliers_;
};

}  // namespace

void check_kvquant_key(const json& file, Check& check) {
  for (const json& expected : file.at("expected").at("cases")) {
    const Case in = read_case(file, expected);
    check.set_context(std::to_string(in.bits) + " bits");
    const int n_codes = 1 << in.bits;
    const bool sparse = in.sparsity < 1.0;
    std::vector<NuqLimits> limits(static_cast<std::size_t>(in.c));
    std::vector<float> lower, upper, scratch(static_cast<std::size_t>(in.t));
    for (int c = 0; c < in.c; ++c) {
      limits[c] = kvquant_channel_limits(&in.x[c], in.t, in.c, in.sparsity, scratch.data());
      lower.push_back(limits[c].lower);
      upper.push_back(limits[c].upper);
    }
    check.close_all("lower", lower, read_array(expected.at("lower")).data, {});
    check.close_all("upper", upper, read_array(expected.at("upper")).data, {});

    Comparison comparison(file, expected, check);
    const Rounding rounding = in.normal_float ? Rounding::F16 : Rounding::F32;
    std::vector<fp16_t> table(static_cast<std::size_t>(n_codes));
    for (int t = 0; t < in.t; ++t) {
      for (int c = 0; c < in.c; ++c) {
        const std::size_t at = static_cast<std::size_t>(t) * in.c + c;
        const float x = in.x[at];
        if (sparse && (t < in.first_fp16 || kvquant_key_outlier(limits[c], x))) {
          comparison.outlier(t, c);
          comparison.value(at, fp32_to_fp16(x), false);
        } else if (in.uniform) {
          const UniformGrid grid = kvquant_uniform_grid(limits[c], in.bits);
          kvquant_uniform_table(grid, in.bits, table.data());
          comparison.value(at, table[kvquant_uniform_code(grid, x, in.bits)], false);
        } else {
          const NuqGrid grid = kvquant_grid(limits[c], Rounding::F16);
          const float normalised = kvquant_normalise(grid, x);
          kvquant_table(grid, in.lut.data(), n_codes, rounding, table.data());
          comparison.value(at, table[kvquant_code(in.lut.data(), n_codes, normalised)],
                           near_middle(in.lut, normalised));
        }
      }
    }
    comparison.finish();
  }
}

void check_kvquant_value(const json& file, Check& check) {
  for (const json& expected : file.at("expected").at("cases")) {
    const Case in = read_case(file, expected);
    check.set_context(std::to_string(in.bits) + " bits");
    const int n_codes = 1 << in.bits;
    Comparison comparison(file, expected, check);
    std::vector<float> scratch(static_cast<std::size_t>(in.c));
    std::vector<std::uint8_t> outlier(static_cast<std::size_t>(in.c));
    std::vector<fp16_t> table(static_cast<std::size_t>(n_codes));
    for (int t = 0; t < in.t; ++t) {
      const float* row = &in.x[static_cast<std::size_t>(t) * in.c];
      const NuqLimits limits =
          kvquant_value_limits(row, in.c, in.sparsity, scratch.data(), outlier.data());
      const NuqGrid grid = kvquant_grid(limits, Rounding::F32);
      kvquant_table(grid, in.lut.data(), n_codes, Rounding::F32, table.data());
      for (int c = 0; c < in.c; ++c) {
        const std::size_t at = static_cast<std::size_t>(t) * in.c + c;
        const float normalised = kvquant_normalise(grid, row[c]);
        if (outlier[c] != 0) comparison.outlier(t, c);
        const fp16_t got = outlier[c] ? fp32_to_fp16(row[c])
                                      : table[kvquant_code(in.lut.data(), n_codes, normalised)];
        comparison.value(at, got, outlier[c] == 0 && near_middle(in.lut, normalised));
      }
    }
    comparison.finish();
  }
}

}  // namespace qevict::vectors
