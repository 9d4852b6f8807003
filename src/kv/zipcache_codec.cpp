// ZipCache's storage: two classes of tokens, head by head, and a buffer of fp16 rows. Rows are read
// in the order important, unimportant, buffer.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/math.h"
#include "kernels/kernels.h"
#include "kernels/zipcache.h"
#include "kv/codecs.h"
#include "kv/record_store.h"

namespace qevict {
namespace {

constexpr int kRowsABlock = 32;
constexpr int kMaxCodes = 16;
constexpr std::size_t kGridBytes = 2 * sizeof(fp16_t);
// Of a prompt's and of a buffer's rows, so many are probes: the newest and as many random ones.
constexpr int kProbeShare = 20;
constexpr std::uint64_t kSeed = 0x5a697043;

// splitmix64 of two numbers.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// What is a little beyond fp16's range after dequantisation stays finite.
fp16_t to_fp16(float x) noexcept { return fp32_to_fp16(std::clamp(x, -65504.0F, 65504.0F)); }

// Tokens of equal width. Row r joins the r-th listed token of every head.
struct TokenClass {
  int bits = 0;
  std::vector<std::int32_t> positions;  // [H][n]
  std::vector<fp16_t> key_grids;        // [H * D][2]: scale, zero
  RecordStore keys;                     // codes
  RecordStore values;                   // scale and zero in fp16, codes
  int size() const { return keys.size(); }
};

class ZipcacheCodec final : public RowCodec {
 public:
  ZipcacheCodec(const Geometry& g, const ZipcacheOptions& options)
      : n_heads_(g.n_heads),
        heads_(g.n_kv_heads),
        d_(g.head_dim),
        channels_(heads_ * d_),
        options_(options),
        buffer_(std::size_t{2} * channels_ * sizeof(fp16_t), 1) {
    classes_[0].bits = 4;
    classes_[1].bits = 2;
  }

  std::unique_ptr<RowCodec> clone() const override {
    return std::make_unique<ZipcacheCodec>(*this);
  }

  TierBytes bytes() const override {
    TierBytes bytes;
    bytes.local = buffer_.bytes();
    bytes.quantized = scales_.size() * sizeof(fp16_t);
    for (const TokenClass& c : classes_) {
      bytes.quantized += c.keys.bytes() + c.values.bytes() + c.key_grids.size() * sizeof(fp16_t);
    }
    return bytes;
  }
  MetadataBytes metadata() const override {
    MetadataBytes bytes;
    for (const TokenClass& c : classes_) {
      bytes.positions += c.positions.size() * sizeof(std::int32_t);
    }
    bytes.scores = sums_.size() * sizeof(float);
    return bytes;
  }
  std::size_t reserved_bytes() const override {
    std::size_t bytes = buffer_.reserved_bytes();
    for (const TokenClass& c : classes_) {
      bytes += c.keys.reserved_bytes() + c.values.reserved_bytes();
    }
    return bytes;
  }

  void load(int kv_head, int first, int n, const ChunkRows& out) const noexcept override;
  std::vector<int> probe_rows(int n_new) const override;
  void append_prompt(const CodecRows& rows, const ProbeRows& probes) override;

  void reserve_row() override { buffer_.reserve_one(); }
  void push_row() noexcept override {
    ++n_tokens_;
    buffer_.push();
  }
  void write(int kv_head, const float* k, const float* v) noexcept override {
    auto* to = reinterpret_cast<fp16_t*>(buffer_.at(buffer_.size() - 1)) + kv_head * d_;
    for (int c = 0; c < d_; ++c) {
      to[c] = fp32_to_fp16(k[c]);
      to[channels_ + c] = fp32_to_fp16(v[c]);
    }
  }
  bool uses_mass() const override { return true; }
  bool wants_mass() const override;
  void add_mass(const float* mass) noexcept override;
  void end_step() override;

 private:
  int quantised() const { return classes_[0].size() + classes_[1].size(); }
  // Position of each row of a head, in the codec's order; `more` positions follow.
  std::vector<std::int32_t> row_positions(int head, int more) const;
  // Quantises n rows anew, positions 0 .. n-1 in any order. positions, saliency: [H][n].
  void quantise(const HeadRows<fp16_t>& k, const HeadRows<fp16_t>& v, int n,
                const std::vector<std::int32_t>& positions, const std::vector<float>& saliency);
  void fill_class(TokenClass& to, const HeadRows<fp16_t>& k, const HeadRows<fp16_t>& v,
                  const std::vector<std::int32_t>& rows);
  // One KV head of a row: k with `stride` between channels.
  void load_row(int head, int row, fp16_t* k, std::ptrdiff_t stride, fp16_t* v) const noexcept;

  int n_heads_, heads_, d_, channels_;
  ZipcacheOptions options_;
  TokenClass classes_[2];       // important, unimportant
  std::vector<fp16_t> scales_;  // [H * D] of the values
  RecordStore buffer_;          // fp16 rows: K [H][D], then V [H][D]
  std::vector<float> sums_;     // [H][quantised() + gap]: mass from the buffer's probes
};

// Of n rows, how many of the newest and how many random ones are probes.
int newest_probes(int n) { return ceil_div(n, kProbeShare); }
int random_probes(int n) { return n / kProbeShare; }

void ZipcacheCodec::load(int kv_head, int first, int n, const ChunkRows& out) const noexcept {
  for (int i = 0; i < n; ++i) {
    load_row(kv_head, first + i, out.k + i, out.capacity,
             out.v + static_cast<std::ptrdiff_t>(i) * d_);
  }
}

void ZipcacheCodec::load_row(int head, int row, fp16_t* k, std::ptrdiff_t stride,
                             fp16_t* v) const noexcept {
  const int n_important = classes_[0].size();
  if (row >= quantised()) {
    const auto* from = reinterpret_cast<const fp16_t*>(buffer_.at(row - quantised())) + head * d_;
    for (int c = 0; c < d_; ++c) k[c * stride] = from[c];
    std::copy_n(from + channels_, d_, v);
    return;
  }
  const TokenClass& from = classes_[row < n_important ? 0 : 1];
  const int r = row < n_important ? row : row - n_important;
  std::uint8_t codes[kMaxHeadDim];
  unpack_codes(from.keys.at(r), std::ptrdiff_t{head} * d_, d_, from.bits, codes);
  const fp16_t* grids = &from.key_grids[static_cast<std::size_t>(head) * d_ * 2];
  for (int c = 0; c < d_; ++c) {
    const AffineGrid grid{fp16_to_fp32(grids[2 * c]), fp16_to_fp32(grids[2 * c + 1])};
    k[c * stride] = to_fp16(affine_value(grid, codes[c], Rounding::F32));
  }
  const std::uint8_t* record = from.values.at(r);
  fp16_t pair[2];
  std::memcpy(pair, record, kGridBytes);
  const AffineGrid grid{fp16_to_fp32(pair[0]), fp16_to_fp32(pair[1])};
  float table[kMaxCodes];
  for (int code = 0; code < 1 << from.bits; ++code) {
    table[code] = affine_value(grid, static_cast<std::uint8_t>(code), Rounding::F32);
  }
  unpack_codes(record + kGridBytes, std::ptrdiff_t{head} * d_, d_, from.bits, codes);
  const fp16_t* scales = &scales_[static_cast<std::size_t>(head) * d_];
  for (int c = 0; c < d_; ++c) v[c] = to_fp16(table[codes[c]] * fp16_to_fp32(scales[c]));
}

std::vector<int> ZipcacheCodec::probe_rows(int n_new) const {
  const int newest = newest_probes(n_new);
  std::vector<int> rows;
  for (int r = n_new - newest; r < n_new; ++r) rows.push_back(r);
  for (int i = 0; i < random_probes(n_new); ++i) {
    rows.push_back(static_cast<int>(mix(kSeed + static_cast<std::uint64_t>(n_tokens_), i) %
                                    static_cast<std::uint64_t>(n_new - newest)));
  }
  return rows;
}

std::vector<std::int32_t> ZipcacheCodec::row_positions(int head, int more) const {
  std::vector<std::int32_t> positions;
  for (const TokenClass& c : classes_) {
    const auto begin = c.positions.begin() + std::ptrdiff_t{head} * c.size();
    positions.insert(positions.end(), begin, begin + c.size());
  }
  for (int i = 0; i < buffer_.size() + more; ++i) positions.push_back(quantised() + i);
  return positions;
}

void ZipcacheCodec::append_prompt(const CodecRows& rows, const ProbeRows& probes) {
  const int n = rows.n_rows;
  const int n_new = n - n_tokens_;
  const int group = n_heads_ / heads_;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d_));
  const std::ptrdiff_t head_stride = static_cast<std::ptrdiff_t>(rows.capacity) * d_;
  std::vector<std::int32_t> positions;
  std::vector<float> saliency;
  std::vector<float> columns(static_cast<std::size_t>(d_) * n),
      scratch(static_cast<std::size_t>(n));
  for (int h = 0; h < heads_; ++h) {
    const std::vector<std::int32_t> at = row_positions(h, n_new);
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < d_; ++c) {
        columns[static_cast<std::size_t>(c) * n + r] =
            fp16_to_fp32(rows.k[h * head_stride + static_cast<std::ptrdiff_t>(r) * d_ + c]);
      }
    }
    std::vector<double> sums(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < probes.rows.size(); ++i) {
      const float* q = probes.q + (i * n_heads_ + static_cast<std::size_t>(h) * group) * d_;
      for (int j = 0; j < group; ++j) {
        zipcache_add_probe(q + static_cast<std::ptrdiff_t>(j) * d_, d_, scale,
                           n_tokens_ + probes.rows[i], columns.data(), at.data(), n, scratch.data(),
                           sums.data());
      }
    }
    for (int r = 0; r < n; ++r) {
      saliency.push_back(static_cast<float>(sums[r] / std::min(n_new, n - at[r])));
    }
    positions.insert(positions.end(), at.begin(), at.end());
  }
  quantise({rows.k, head_stride, heads_, d_}, {rows.v, head_stride, heads_, d_}, n, positions,
           saliency);
  n_tokens_ = n;
}

void ZipcacheCodec::quantise(const HeadRows<fp16_t>& k, const HeadRows<fp16_t>& v, int n,
                             const std::vector<std::int32_t>& positions,
                             const std::vector<float>& saliency) {
  const auto n_unimportant = static_cast<int>(n * options_.unimportant);
  const int n_important = n - n_unimportant;
  TokenClass fresh[2];
  std::vector<std::int32_t> rows[2];
  std::vector<float> by_position(static_cast<std::size_t>(n));
  std::vector<std::int32_t> row_at(by_position.size()), scratch(by_position.size());
  for (int i = 0; i < 2; ++i) {
    const int size = i == 0 ? n_important : n_unimportant;
    fresh[i].bits = classes_[i].bits;
    fresh[i].positions.resize(static_cast<std::size_t>(heads_) * size);
    rows[i].resize(fresh[i].positions.size());
  }
  for (int h = 0; h < heads_; ++h) {
    const std::size_t begin = static_cast<std::size_t>(h) * n;
    for (int r = 0; r < n; ++r) {
      by_position[positions[begin + r]] = saliency[begin + r];
      row_at[positions[begin + r]] = r;
    }
    std::int32_t* important = fresh[0].positions.data() + std::ptrdiff_t{h} * n_important;
    std::int32_t* unimportant = fresh[1].positions.data() + std::ptrdiff_t{h} * n_unimportant;
    zipcache_split(by_position.data(), n, n_unimportant, scratch.data(), unimportant, important);
    for (int i = 0; i < n_important; ++i) rows[0][h * n_important + i] = row_at[important[i]];
    for (int i = 0; i < n_unimportant; ++i) rows[1][h * n_unimportant + i] = row_at[unimportant[i]];
  }
  std::vector<float> scales(static_cast<std::size_t>(channels_));
  zipcache_channel_scales(v, n, Rounding::F16, scales.data());
  scales_.resize(scales.size());
  std::ranges::transform(scales, scales_.begin(), fp32_to_fp16);
  for (int i = 0; i < 2; ++i) {
    fill_class(fresh[i], k, v, rows[i]);
    classes_[i] = std::move(fresh[i]);
  }
  buffer_.clear();
  sums_.assign(static_cast<std::size_t>(heads_) * (n + options_.streaming_gap), 0.0F);
}

void ZipcacheCodec::fill_class(TokenClass& to, const HeadRows<fp16_t>& k, const HeadRows<fp16_t>& v,
                               const std::vector<std::int32_t>& rows) {
  const int n = static_cast<int>(rows.size()) / heads_;
  const ClassTokens tokens{rows.data(), n, to.bits};
  const std::size_t row_bytes = packed_bytes(static_cast<std::size_t>(channels_), to.bits);
  to.keys = RecordStore(row_bytes, kRowsABlock);
  to.values = RecordStore(kGridBytes + row_bytes, kRowsABlock);
  std::vector<AffineGrid> grids(static_cast<std::size_t>(channels_));
  zipcache_key_grids(k, tokens, Rounding::F16, grids.data());
  to.key_grids.clear();
  for (const AffineGrid& grid : grids) {
    to.key_grids.push_back(fp32_to_fp16(grid.scale));
    to.key_grids.push_back(fp32_to_fp16(grid.zero));
  }
  std::vector<float> scales(scales_.size());
  std::ranges::transform(scales_, scales.begin(), fp16_to_fp32);
  std::vector<std::uint8_t> codes(grids.size());
  for (int r = 0; r < n; ++r) {
    zipcache_key_codes(k, tokens, r, grids.data(), codes.data());
    pack_codes(codes.data(), channels_, to.bits, to.keys.push());
    const AffineGrid grid =
        zipcache_value_codes(v, tokens, r, scales.data(), Rounding::F16, codes.data());
    const fp16_t pair[2] = {fp32_to_fp16(grid.scale), fp32_to_fp16(grid.zero)};
    std::uint8_t* record = to.values.push();
    std::memcpy(record, pair, kGridBytes);
    pack_codes(codes.data(), channels_, to.bits, record + kGridBytes);
  }
}

bool ZipcacheCodec::wants_mass() const {
  const int gap = options_.streaming_gap;
  const int newest = newest_probes(gap);
  const int row = buffer_.size() - 1;
  if (row >= gap - newest) return true;
  const auto base = static_cast<std::uint64_t>(quantised());
  for (int i = 0; i < random_probes(gap); ++i) {
    if (static_cast<int>(mix(kSeed + base, i) % static_cast<std::uint64_t>(gap - newest)) == row) {
      return true;
    }
  }
  return false;
}

void ZipcacheCodec::add_mass(const float* mass) noexcept {
  const std::ptrdiff_t stride = std::ptrdiff_t{quantised()} + options_.streaming_gap;
  for (int h = 0; h < heads_; ++h) {
    for (int r = 0; r < n_tokens_; ++r) {
      sums_[h * stride + r] += mass[static_cast<std::ptrdiff_t>(h) * n_tokens_ + r];
    }
  }
}

void ZipcacheCodec::end_step() {
  const int gap = options_.streaming_gap;
  if (buffer_.size() < gap) return;
  const int n = n_tokens_;
  const std::ptrdiff_t head_stride = std::ptrdiff_t{n} * d_;
  std::vector<fp16_t> k(static_cast<std::size_t>(heads_) * head_stride), v(k.size());
  std::vector<std::int32_t> positions;
  std::vector<float> saliency;
  for (int h = 0; h < heads_; ++h) {
    const std::vector<std::int32_t> at = row_positions(h, 0);
    for (int r = 0; r < n; ++r) {
      const std::ptrdiff_t row = h * head_stride + std::ptrdiff_t{r} * d_;
      load_row(h, r, &k[row], 1, &v[row]);
      saliency.push_back(sums_[static_cast<std::size_t>(h) * n + r] /
                         static_cast<float>(std::min(gap, n - at[r])));
    }
    positions.insert(positions.end(), at.begin(), at.end());
  }
  quantise({k.data(), head_stride, heads_, d_}, {v.data(), head_stride, heads_, d_}, n, positions,
           saliency);
}

}  // namespace

std::unique_ptr<RowCodec> make_zipcache_codec(const CodecContext& context,
                                              const ZipcacheOptions& options) {
  return std::make_unique<ZipcacheCodec>(context.geometry, options);
}

}  // namespace qevict
