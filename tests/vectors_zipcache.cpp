// Op `zipcache_prefill`: saliency from probe rows, the split, both classes' codes.
#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/zipcache.h"
#include "vectors_peers.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

struct Shape {
  int n_heads = 0, n_kv_heads = 0, d = 0, t = 0;
  int channels() const { return n_kv_heads * d; }
};

// The kernels read fp16 keys and the vectors have fp32 ones: each key goes in as the sum of two,
// over twice as many channels.
std::vector<float> saliency_of(const json& inputs, const Shape& s) {
  const std::vector<std::int64_t> probes = read_array(inputs.at("probe_ids")).ints();
  const std::vector<float> q = read_array(inputs.at("q_probe")).floats();
  const std::vector<float> k = read_array(inputs.at("k")).floats();
  const int group = s.n_heads / s.n_kv_heads;
  const int d = s.d;
  std::vector<std::int32_t> visible;
  for (const std::int64_t id : probes) visible.push_back(static_cast<std::int32_t>(id) + 1);
  std::vector<float> doubled;
  for (std::size_t at = 0; at < q.size(); at += d) {
    for (int twice = 0; twice < 2; ++twice) {
      doubled.insert(doubled.end(), q.begin() + at, q.begin() + at + d);
    }
  }
  std::vector<float> buffer(zipcache_probe_floats(s.t, 2 * d) + 16);
  float* scratch = buffer.data();
  while (reinterpret_cast<std::uintptr_t>(scratch) % 64 != 0) ++scratch;
  std::vector<float> saliency;
  for (int h = 0; h < s.n_kv_heads; ++h) {
    std::vector<fp16_t> keys;
    for (int t = 0; t < s.t; ++t) {
      const float* key = &k[(static_cast<std::size_t>(h) * s.t + t) * d];
      for (int c = 0; c < d; ++c) keys.push_back(fp32_to_fp16(key[c]));
      for (int c = 0; c < d; ++c) {
        keys.push_back(fp32_to_fp16(key[c] - fp16_to_fp32(fp32_to_fp16(key[c]))));
      }
    }
    std::vector<double> sums(static_cast<std::size_t>(s.t));
    for (int j = h * group; j < (h + 1) * group; ++j) {
      zipcache_add_probes(
          *active_kernels().dense,
          {&doubled[static_cast<std::size_t>(j) * probes.size() * 2 * d], 2 * d, visible.data(),
           static_cast<int>(probes.size()), 1.0F / std::sqrt(static_cast<float>(d)), keys.data(),
           s.t, 2 * d, scratch},
          sums.data());
    }
    for (int t = 0; t < s.t; ++t) saliency.push_back(static_cast<float>(sums[t] / (s.t - t)));
  }
  return saliency;
}

// The ids of one class, head after head; in the peer's own order where that may differ.
struct Split {
  std::vector<std::int32_t> unimportant, important;
};

Split check_split(const json& e, const std::vector<float>& saliency, int n_unimportant,
                  const Shape& s, Check& check) {
  Split peer;
  const std::size_t n = static_cast<std::size_t>(s.t);
  std::vector<std::int32_t> scratch(n), low(static_cast<std::size_t>(n_unimportant)),
      high(n - low.size());
  for (int h = 0; h < s.n_kv_heads; ++h) {
    zipcache_split(&saliency[h * n], s.t, n_unimportant, scratch.data(), low.data(), high.data());
    const auto wanted_low = e.at("unimportant_ids").at(h).get<std::vector<std::int64_t>>();
    const auto wanted_high = e.at("important_ids").at(h).get<std::vector<std::int64_t>>();
    const auto ambiguous = e.at("ambiguous").at(h).get<std::set<std::int64_t>>();
    const std::string head = " of head " + std::to_string(h);
    if (ambiguous.empty() && !e.at("unimportant_order_near_tie").at(h).get<bool>()) {
      check.equal_all("unimportant_ids" + head, low, wanted_low);
    }
    if (ambiguous.empty()) check.equal_all("important_ids" + head, high, wanted_high);
    for (const std::int64_t id : wanted_high) {
      if (!ambiguous.contains(id) && !std::ranges::binary_search(high, id)) {
        check.fail("important_ids" + head + " lacks " + std::to_string(id));
      }
    }
    peer.unimportant.insert(peer.unimportant.end(), wanted_low.begin(), wanted_low.end());
    peer.important.insert(peer.important.end(), wanted_high.begin(), wanted_high.end());
  }
  return peer;
}

// One class of keys or values: codes, grids, and the dequantised values of its tokens.
class ClassCheck {
 public:
  ClassCheck(const json& file, const char* what, const std::string& name, const Shape& s,
             Check& check)
      : s_(s), check_(check) {
    const json& e = file.at("expected").at(what);
    expected_ = &e.at(name);
    codes_ = read_array(expected_->at("codes")).ints();
    dequant_ = read_array(e.at("dequant")).data;
    rtol_ = file.at("tolerance").at("min_step_rtol");
    atol_ = file.at("tolerance").at("dequant_atol");
    what_ = std::string(what) + " " + name + " ";
  }
  int bits() const { return expected_->at("bits"); }

  // x: the (scaled) value that the code at [row][column] stands for; factor: what the restored
  // value is multiplied by.
  void element(int row, int column, int token, float x, const AffineGrid& grid, std::uint8_t code,
               float factor) {
    const std::size_t at = static_cast<std::size_t>(row) * s_.channels() + column;
    const auto wanted = static_cast<std::uint8_t>(codes_.at(at));
    if (code != wanted && grid.scale != 0.0F) {
      const double position = (double{x} - grid.zero) / grid.scale;
      const double from_half = std::fabs(std::fabs(position - std::floor(position)) - 0.5);
      if (from_half > 1e-4) check_.equal(what_ + "codes[" + std::to_string(at) + "]", code, wanted);
      code = wanted;
    }
    const int head = column / s_.d;
    const std::size_t place =
        (static_cast<std::size_t>(head) * s_.t + token) * s_.d + column % s_.d;
    check_.close(what_ + "dequant[" + std::to_string(place) + "]",
                 affine_value(grid, code, Rounding::F32) * factor, dequant_.at(place), {atol_, 0});
  }
  void grids(const std::vector<AffineGrid>& grids) {
    std::vector<float> min, step;
    for (const AffineGrid& grid : grids) {
      min.push_back(grid.zero);
      step.push_back(grid.scale);
    }
    check_.close_all(what_ + "min", min, read_array(expected_->at("min")).data, {1e-9, rtol_});
    check_.close_all(what_ + "step", step, read_array(expected_->at("step")).data, {1e-9, rtol_});
  }

 private:
  Shape s_;
  Check& check_;
  const json* expected_ = nullptr;
  std::vector<std::int64_t> codes_;
  std::vector<double> dequant_;
  double rtol_ = 0.0, atol_ = 0.0;
  std::string what_;
};

}  // namespace

void check_zipcache_prefill(const json& file, Check& check) {
  const json& p = file.at("params");
  const json& e = file.at("expected");
  const json& inputs = file.at("inputs");
  const Shape s{p.at("H"), p.at("G"), p.at("D"), p.at("T")};
  const json& tolerance = file.at("tolerance");
  const std::vector<float> saliency = saliency_of(inputs, s);
  check.close_all("saliency", saliency, read_array(e.at("saliency")).data,
                  {tolerance.at("saliency_atol"), tolerance.at("saliency_rtol")});
  const auto n_unimportant = static_cast<int>(s.t * p.at("unimportant_ratio").get<double>());
  check.equal("n_unimportant", n_unimportant, e.at("n_unimportant"));
  const Split split = check_split(e, saliency, n_unimportant, s, check);

  const std::vector<float> k = read_array(inputs.at("k")).floats();
  const std::vector<float> v = read_array(inputs.at("v")).floats();
  const std::ptrdiff_t stride = std::ptrdiff_t{s.t} * s.d;
  const HeadRows<float> keys{k.data(), stride, s.n_kv_heads, s.d};
  const HeadRows<float> values{v.data(), stride, s.n_kv_heads, s.d};
  std::vector<float> scales(static_cast<std::size_t>(s.channels()));
  zipcache_channel_scales(values, s.t, Rounding::F32, scales.data());
  check.close_all("channel_scale", scales, read_array(e.at("value").at("channel_scale")).data,
                  {0.0, tolerance.at("min_step_rtol")});

  std::vector<std::uint8_t> codes(scales.size());
  for (const auto& [name, ids] :
       {std::pair{"important", &split.important}, std::pair{"unimportant", &split.unimportant}}) {
    const int n = static_cast<int>(ids->size()) / s.n_kv_heads;
    const auto token = [&](int row, int column) {
      return (*ids)[static_cast<std::size_t>(column / s.d) * n + row];
    };
    const auto at = [&](int row, int column) {
      return (std::ptrdiff_t{column / s.d} * s.t + token(row, column)) * s.d + column % s.d;
    };
    ClassCheck key(file, "key", name, s, check);
    const ClassTokens key_tokens{ids->data(), n, key.bits()};
    std::vector<AffineGrid> grids(scales.size());
    zipcache_key_grids(keys, key_tokens, Rounding::F32, grids.data());
    key.grids(grids);
    for (int r = 0; r < n; ++r) {
      zipcache_key_codes(keys, key_tokens, r, grids.data(), codes.data());
      for (int c = 0; c < s.channels(); ++c) {
        key.element(r, c, token(r, c), k[at(r, c)], grids[c], codes[c], 1.0F);
      }
    }
    ClassCheck value(file, "value", name, s, check);
    const ClassTokens value_tokens{ids->data(), n, value.bits()};
    std::vector<AffineGrid> row_grids;
    for (int r = 0; r < n; ++r) {
      row_grids.push_back(zipcache_value_codes(values, value_tokens, r, scales.data(),
                                               Rounding::F32, codes.data()));
      for (int c = 0; c < s.channels(); ++c) {
        value.element(r, c, token(r, c), v[at(r, c)] / scales[c], row_grids.back(), codes[c],
                      scales[c]);
      }
    }
    value.grids(row_grids);
  }
}

}  // namespace qevict::vectors
