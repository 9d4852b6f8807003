// Ops `kivi_key`, `kivi_value`, `kivi_split`.
#include <cmath>

#include "kernels/kivi.h"
#include "vectors_peers.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

struct Quantised {
  std::vector<std::uint8_t> codes;           // as the input
  std::vector<std::int64_t> words;           // packed, 32 bits a word
  std::vector<float> scale, zero, restored;  // restored as the input
};

Rounding read_rounding(const json& file) {
  const auto type = file.at("params").at("compute_dtype").get<std::string>();
  return type == "f16" ? Rounding::F16 : Rounding::F32;
}

// Packs n codes spaced `stride` apart; word w of the row goes to words[w * word_stride].
void pack_words(const std::uint8_t* codes, int n, std::ptrdiff_t stride, int bits,
                std::int64_t* words, std::ptrdiff_t word_stride) {
  std::vector<std::uint8_t> row(static_cast<std::size_t>(n)), bytes(packed_bytes(row.size(), bits));
  for (int i = 0; i < n; ++i) row[i] = codes[i * stride];
  pack_codes(row.data(), n, bits, bytes.data());
  for (std::size_t i = 0; i + 3 < bytes.size(); i += 4) {
    const std::uint32_t word = bytes[i] | bytes[i + 1] << 8 | bytes[i + 2] << 16 |
                               static_cast<std::uint32_t>(bytes[i + 3]) << 24;
    words[static_cast<std::ptrdiff_t>(i / 4) * word_stride] = static_cast<std::int32_t>(word);
  }
}

// Rows of n values; the values of a row are `stride` apart. Groups of `group` along the row; grid
// i of a row goes to [i * grid_stride].
struct Row {
  std::ptrdiff_t at, stride, grid_at, grid_stride, word_at, word_stride;
};

void quantise_row(const std::vector<float>& x, const Row& row, int n, int group, int bits,
                  Rounding rounding, Quantised& out) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(group));
  std::vector<fp16_t> table(1U << bits);
  for (int i = 0; i < n / group; ++i) {
    const std::ptrdiff_t first = row.at + std::ptrdiff_t{i} * group * row.stride;
    const AffineGrid grid =
        kivi_quantize(&x[first], group, row.stride, bits, rounding, codes.data());
    out.scale[row.grid_at + i * row.grid_stride] = grid.scale;
    out.zero[row.grid_at + i * row.grid_stride] = grid.zero;
    affine_table(grid, bits, rounding, table.data());
    for (int j = 0; j < group; ++j) {
      const std::ptrdiff_t at = first + j * row.stride;
      out.codes[at] = codes[j];
      // A table holds fp16, as the policy reads it; what computes in fp32 is checked in fp32.
      out.restored[at] = rounding == Rounding::F16 ? fp16_to_fp32(table[codes[j]])
                                                   : affine_value(grid, codes[j], rounding);
    }
  }
  pack_words(&out.codes[row.at], n, row.stride, bits, &out.words[row.word_at], row.word_stride);
}

void compare(const json& file, const json& expected, const std::vector<float>& x,
             const Quantised& got, Rounding rounding, const std::vector<float>& scale_of_x,
             const std::vector<float>& zero_of_x, Check& check) {
  const json& tolerance = file.at("tolerance");
  const std::vector<std::int64_t> codes = read_array(expected.at("codes")).ints();
  bool same = true;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (got.codes[i] == codes[i] || scale_of_x[i] == 0.0F) continue;
    same = false;
    const double position = (double{x[i]} - zero_of_x[i]) / scale_of_x[i];
    const double from_half = std::fabs(std::fabs(position - std::floor(position)) - 0.5);
    if (rounding == Rounding::F16 || from_half > 1e-5) {
      check.equal("codes[" + std::to_string(i) + "]", got.codes[i], codes[i]);
    }
  }
  // The junk codes of a constant group are packed too.
  bool constant = false;
  for (const float scale : got.scale) constant |= scale == 0.0F;
  if (same && !constant) {
    check.equal_all("packed", got.words, read_array(expected.at("packed")).ints());
  }
  const Tolerance grid{0.0, tolerance.at("scale_rtol").get<double>()};
  check.close_all("scale", got.scale, read_array(expected.at("scale")).data, grid);
  check.close_all("mn", got.zero, read_array(expected.at("mn")).data, grid);
  check.close_all("dequant", got.restored, read_array(expected.at("dequant")).data,
                  {tolerance.at("dequant_atol").get<double>(), 0.0});
}

// keys: rows are channels, groups run over tokens; values: rows are tokens, over channels.
void check_kivi(const json& file, const char* input, bool keys, Check& check) {
  const json& p = file.at("params");
  const int n_heads = p.at("G"), t = p.at("T"), d = p.at("D"), group = p.at("group_size");
  const Rounding rounding = read_rounding(file);
  const std::vector<float> x = read_array(file.at("inputs").at(input)).floats();
  for (const json& expected : file.at("expected").at("cases")) {
    const int bits = expected.at("bits");
    check.set_context(std::to_string(bits) + " bits");
    const int n = keys ? t : d;       // values a row
    const int rows = keys ? d : t;    // rows a head
    const int grids = n / group;      // a row
    const int words = n * bits / 32;  // a row
    Quantised got;
    got.codes.resize(x.size());
    got.restored.resize(x.size());
    got.scale.resize(static_cast<std::size_t>(n_heads) * rows * grids);
    got.zero.resize(got.scale.size());
    got.words.resize(static_cast<std::size_t>(n_heads) * rows * words);
    std::vector<float> scale_of_x(x.size()), zero_of_x(x.size());
    for (int h = 0; h < n_heads; ++h) {
      for (int r = 0; r < rows; ++r) {
        const std::ptrdiff_t head = std::ptrdiff_t{h} * t * d;
        const std::ptrdiff_t first = std::ptrdiff_t{h} * rows;
        const Row row = keys ? Row{head + r, d, first * grids + r, d, first * words + r, d}
                             : Row{head + std::ptrdiff_t{r} * d, 1, (first + r) * grids, 1,
                                   (first + r) * words,          1};
        quantise_row(x, row, n, group, bits, rounding, got);
        for (int i = 0; i < n; ++i) {
          const std::ptrdiff_t grid = row.grid_at + i / group * row.grid_stride;
          scale_of_x[row.at + i * row.stride] = got.scale[grid];
          zero_of_x[row.at + i * row.stride] = got.zero[grid];
        }
      }
    }
    compare(file, expected, x, got, rounding, scale_of_x, zero_of_x, check);
  }
}

}  // namespace

void check_kivi_key(const json& file, Check& check) { check_kivi(file, "k", true, check); }

void check_kivi_value(const json& file, Check& check) { check_kivi(file, "v", false, check); }

void check_kivi_split(const json& file, Check& check) {
  for (const json& c : file.at("expected").at("cases")) {
    const int residual = c.at("residual_length");
    for (const json& step : c.at("steps")) {
      const std::int64_t seen = step.at("seen");
      check.set_context("T " + std::to_string(c.at("T").get<int>()) + ", seen " +
                        std::to_string(seen));
      const KiviSplit split = kivi_split(seen, residual);
      check.equal("k_quant", split.keys, step.at("k_quant"));
      check.equal("k_full", seen - split.keys, step.at("k_full"));
      check.equal("v_quant", split.values, step.at("v_quant"));
      check.equal("v_full", seen - split.values, step.at("v_full"));
    }
  }
}

}  // namespace qevict::vectors
