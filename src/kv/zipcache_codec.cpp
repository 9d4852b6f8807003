// ZipCache's storage: two classes of tokens, head by head, and a buffer of fp16 rows. Rows are read
// in the order important, unimportant, buffer. A token's class is chosen once, when it leaves the
// buffer; what is quantised is dequantised and quantised again with every new batch, as the peer
// does.
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
// Of a prompt's rows, one in so many is a probe as one of the newest, and as many are random ones.
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
  std::vector<fp16_t> key_grids;  // [H * D][2]: scale, zero
  RecordStore keys;               // codes
  RecordStore values;             // scale and zero in fp16, codes
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
        buffer_(std::size_t{2} * channels_ * sizeof(fp16_t), 1),
        saliency_(static_cast<std::size_t>(heads_) * options.streaming_gap) {
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
    bytes.scores = saliency_.size() * sizeof(float);
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
  // Quantises n rows anew: those that are quantised, in the codec's order, then fresh ones, which
  // are split by saliency [H][n - quantised()].
  void quantise(const HeadRows<fp16_t>& k, const HeadRows<fp16_t>& v, int n,
                const std::vector<float>& saliency);
  void fill_class(TokenClass& to, const HeadRows<fp16_t>& k, const HeadRows<fp16_t>& v,
                  const std::vector<std::int32_t>& rows);
  // One KV head of a row: k with `stride` between channels.
  void load_row(int head, int row, fp16_t* k, std::ptrdiff_t stride, fp16_t* v) const noexcept;

  int n_heads_, heads_, d_, channels_;
  ZipcacheOptions options_;
  TokenClass classes_[2];        // important, unimportant
  std::vector<fp16_t> scales_;   // [H * D] of the values
  RecordStore buffer_;           // fp16 rows: K [H][D], then V [H][D]
  std::vector<float> saliency_;  // [H][streaming gap] of the buffer, when it is full
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

void ZipcacheCodec::append_prompt(const CodecRows& rows, const ProbeRows& probes) {
  const int n = rows.n_rows;
  const int n_new = n - n_tokens_;
  const int group = n_heads_ / heads_;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d_));
  const std::ptrdiff_t head_stride = static_cast<std::ptrdiff_t>(rows.capacity) * d_;
  std::vector<float> saliency;
  std::vector<std::int32_t> visible;
  for (const int row : probes.rows) visible.push_back(n_tokens_ + row + 1);
  std::vector<float> buffer(zipcache_probe_floats(n, d_) + 16);
  float* scratch = buffer.data();
  while (reinterpret_cast<std::uintptr_t>(scratch) % 64 != 0) ++scratch;
  for (int h = 0; h < heads_; ++h) {
    std::vector<double> sums(static_cast<std::size_t>(n));
    for (int j = h * group; j < (h + 1) * group; ++j) {
      zipcache_add_probes(
          *active_kernels().dense,
          {probes.q + static_cast<std::ptrdiff_t>(j) * d_, std::ptrdiff_t{n_heads_} * d_,
           visible.data(), static_cast<int>(visible.size()), scale, rows.k + h * head_stride, n, d_,
           scratch},
          sums.data());
    }
    // Divided by the number of new tokens that see the key.
    for (int r = quantised(); r < n; ++r) {
      saliency.push_back(static_cast<float>(sums[r] / std::min(n_new, n - r)));
    }
  }
  quantise({rows.k, head_stride, heads_, d_}, {rows.v, head_stride, heads_, d_}, n, saliency);
  n_tokens_ = n;
}

void ZipcacheCodec::quantise(const HeadRows<fp16_t>& k, const HeadRows<fp16_t>& v, int n,
                             const std::vector<float>& saliency) {
  const int n_old = quantised();
  const int n_fresh = n - n_old;
  const auto n_low = static_cast<int>(n_fresh * options_.unimportant);
  // Rows of both classes, head after head: the old ones, then the fresh ones that join.
  std::vector<std::int32_t> rows[2];
  std::vector<std::int32_t> scratch(static_cast<std::size_t>(n_fresh));
  std::vector<std::int32_t> low(static_cast<std::size_t>(n_low)), high(scratch.size() - low.size());
  for (int h = 0; h < heads_; ++h) {
    zipcache_split(saliency.data() + static_cast<std::ptrdiff_t>(h) * n_fresh, n_fresh, n_low,
                   scratch.data(), low.data(), high.data());
    for (int r = 0; r < n_old; ++r) rows[r < classes_[0].size() ? 0 : 1].push_back(r);
    for (const std::int32_t i : high) rows[0].push_back(n_old + i);
    for (const std::int32_t i : low) rows[1].push_back(n_old + i);
  }
  std::vector<float> scales(static_cast<std::size_t>(channels_));
  zipcache_channel_scales(v, n, Rounding::F16, scales.data());
  scales_.resize(scales.size());
  std::ranges::transform(scales, scales_.begin(), fp32_to_fp16);
  for (int i = 0; i < 2; ++i) {
    TokenClass fresh;
    fresh.bits = classes_[i].bits;
    fill_class(fresh, k, v, rows[i]);
    classes_[i] = std::move(fresh);
  }
  buffer_.clear();
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
  to.key_grids.reserve(2 * grids.size());
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

bool ZipcacheCodec::wants_mass() const { return buffer_.size() == options_.streaming_gap; }

// The step that fills the buffer says how salient its tokens are.
void ZipcacheCodec::add_mass(const float* mass) noexcept {
  const int gap = options_.streaming_gap;
  for (int h = 0; h < heads_; ++h) {
    std::copy_n(mass + static_cast<std::ptrdiff_t>(h) * n_tokens_ + quantised(), gap,
                saliency_.data() + static_cast<std::ptrdiff_t>(h) * gap);
  }
}

void ZipcacheCodec::end_step() {
  if (buffer_.size() < options_.streaming_gap) return;
  const int n = n_tokens_;
  const std::ptrdiff_t head_stride = std::ptrdiff_t{n} * d_;
  std::vector<fp16_t> k(static_cast<std::size_t>(heads_) * head_stride), v(k.size());
  for (int h = 0; h < heads_; ++h) {
    for (int r = 0; r < n; ++r) {
      const std::ptrdiff_t row = h * head_stride + std::ptrdiff_t{r} * d_;
      load_row(h, r, &k[row], 1, &v[row]);
    }
  }
  quantise({k.data(), head_stride, heads_, d_}, {v.data(), head_stride, heads_, d_}, n, saliency_);
}

}  // namespace

std::unique_ptr<RowCodec> make_zipcache_codec(const CodecContext& context,
                                              const ZipcacheOptions& options) {
  return std::make_unique<ZipcacheCodec>(context.geometry, options);
}

}  // namespace qevict
