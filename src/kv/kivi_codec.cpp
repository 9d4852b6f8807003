// KIVI's storage: groups of quantised keys, quantised values, and the newest rows of both in fp16.
#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "kernels/kivi.h"
#include "kv/codecs.h"
#include "kv/record_store.h"

namespace qevict {
namespace {

constexpr int kMaxCodes = 16;

class KiviCodec final : public RowCodec {
 public:
  KiviCodec(const Geometry& g, const KiviOptions& options)
      : heads_(g.n_kv_heads),
        d_(g.head_dim),
        options_(options),
        key_codes_(packed_bytes(kKiviGroup, options.bits)),
        value_codes_(packed_bytes(static_cast<std::size_t>(d_), options.bits)),
        value_grids_(ceil_div(d_, kKiviGroup)),
        keys_(heads_ * d_ * (key_codes_ + kGridBytes), 1),
        values_(heads_ * (value_codes_ + value_grids_ * kGridBytes), kKiviGroup),
        key_rows_(static_cast<std::size_t>(options.residual) * heads_ * d_),
        value_rows_(static_cast<std::size_t>(options.residual + 1) * heads_ * d_) {}

  std::unique_ptr<RowCodec> clone() const override { return std::make_unique<KiviCodec>(*this); }

  TierBytes bytes() const override {
    TierBytes bytes;
    bytes.quantized = keys_.bytes() + values_.bytes();
    bytes.local = residual_bytes();
    return bytes;
  }
  std::size_t reserved_bytes() const override {
    const std::size_t rows = (key_rows_.size() + value_rows_.size()) * sizeof(fp16_t);
    return keys_.reserved_bytes() + values_.reserved_bytes() + rows - residual_bytes();
  }

  void load(int kv_head, int first, int n, const ChunkRows& out) const noexcept override {
    const int end = first + n;
    const int keys = std::min(end, n_keys());
    for (int at = first; at < keys; at = std::min(keys, (at / kKiviGroup + 1) * kKiviGroup)) {
      load_keys(kv_head, at, std::min(keys, (at / kKiviGroup + 1) * kKiviGroup) - at,
                out.k + (at - first), out.capacity);
    }
    for (int p = std::max(first, keys); p < end; ++p) {
      const fp16_t* row = key_row(p, kv_head);
      for (int c = 0; c < d_; ++c) {
        out.k[static_cast<std::ptrdiff_t>(c) * out.capacity + (p - first)] = row[c];
      }
    }
    for (int p = first; p < end; ++p) {
      fp16_t* to = out.v + static_cast<std::ptrdiff_t>(p - first) * d_;
      if (p < values_.size()) {
        load_value(kv_head, p, to);
      } else {
        std::copy_n(value_row(p, kv_head), d_, to);
      }
    }
  }

  void append_prompt(const CodecRows& rows, const ProbeRows&) override {
    const int before = n_tokens_;
    const KiviSplit split = kivi_split(rows.n_rows, options_.residual);
    const auto row_of = [&](const fp16_t* data, int head, int p) {
      return data + (static_cast<std::ptrdiff_t>(head) * rows.capacity + p) * d_;
    };
    while (n_keys() < split.keys) {
      quantise_keys(
          [&](int head, int p) { return p < before ? key_row(p, head) : row_of(rows.k, head, p); });
    }
    while (values_.size() < split.values) {
      quantise_value([&](int head, int p) {
        return p < before ? value_row(p, head) : row_of(rows.v, head, p);
      });
    }
    for (int h = 0; h < heads_; ++h) {
      for (int p = std::max(before, n_keys()); p < rows.n_rows; ++p) {
        std::copy_n(row_of(rows.k, h, p), d_, key_row(p, h));
      }
      for (int p = std::max(before, values_.size()); p < rows.n_rows; ++p) {
        std::copy_n(row_of(rows.v, h, p), d_, value_row(p, h));
      }
    }
    n_tokens_ = rows.n_rows;
  }

  void push_row() noexcept override { ++n_tokens_; }
  void write(int kv_head, const float* k, const float* v) noexcept override {
    fp16_t* key = key_row(n_tokens_ - 1, kv_head);
    fp16_t* value = value_row(n_tokens_ - 1, kv_head);
    for (int c = 0; c < d_; ++c) {
      key[c] = fp32_to_fp16(k[c]);
      value[c] = fp32_to_fp16(v[c]);
    }
  }
  void end_step() override {
    const KiviSplit split = kivi_split(n_tokens_, options_.residual);
    while (n_keys() < split.keys) quantise_keys([&](int h, int p) { return key_row(p, h); });
    while (values_.size() < split.values) {
      quantise_value([&](int h, int p) { return value_row(p, h); });
    }
  }

 private:
  static constexpr std::size_t kGridBytes = 2 * sizeof(fp16_t);

  int n_keys() const { return keys_.size() * kKiviGroup; }
  // Rings: a key row is reused once its `residual` keys are quantised, a value row one step after.
  fp16_t* key_row(int p, int head) {
    return &key_rows_[(static_cast<std::size_t>(p % options_.residual) * heads_ + head) * d_];
  }
  fp16_t* value_row(int p, int head) {
    return &value_rows_[(static_cast<std::size_t>(p % (options_.residual + 1)) * heads_ + head) *
                        d_];
  }
  const fp16_t* key_row(int p, int head) const {
    return const_cast<KiviCodec*>(this)->key_row(p, head);
  }
  const fp16_t* value_row(int p, int head) const {
    return const_cast<KiviCodec*>(this)->value_row(p, head);
  }
  std::size_t residual_bytes() const {
    const int rows = (n_tokens_ - n_keys()) + (n_tokens_ - values_.size());
    return sizeof(fp16_t) * heads_ * d_ * rows;
  }

  static void store_grid(const AffineGrid& grid, std::uint8_t* to) {
    const fp16_t pair[2] = {fp32_to_fp16(grid.scale), fp32_to_fp16(grid.zero)};
    std::memcpy(to, pair, kGridBytes);
  }
  void load_table(const std::uint8_t* from, fp16_t* table) const noexcept {
    fp16_t pair[2];
    std::memcpy(pair, from, kGridBytes);
    affine_table({fp16_to_fp32(pair[0]), fp16_to_fp32(pair[1])}, options_.bits, Rounding::F16,
                 table);
  }

  // A record of keys: per head and channel the grid, then the codes of the group's tokens.
  std::size_t key_stride() const { return kGridBytes + key_codes_; }
  // A record of a token's values: per head the grids, then the codes of the channels.
  std::size_t value_stride() const { return value_grids_ * kGridBytes + value_codes_; }

  // The next group of keys; row(head, position) gives their fp16 rows.
  template <typename Row>
  void quantise_keys(const Row& row) {
    const int first = n_keys();
    std::uint8_t* record = keys_.push();
    floats_.resize(static_cast<std::size_t>(kKiviGroup) * d_);
    std::uint8_t codes[kKiviGroup];
    for (int h = 0; h < heads_; ++h) {
      for (int j = 0; j < kKiviGroup; ++j) {
        const fp16_t* from = row(h, first + j);
        for (int c = 0; c < d_; ++c) {
          floats_[static_cast<std::size_t>(j) * d_ + c] = fp16_to_fp32(from[c]);
        }
      }
      for (int c = 0; c < d_; ++c, record += key_stride()) {
        store_grid(kivi_quantize(&floats_[c], kKiviGroup, d_, options_.bits, Rounding::F16, codes),
                   record);
        pack_codes(codes, kKiviGroup, options_.bits, record + kGridBytes);
      }
    }
  }
  template <typename Row>
  void quantise_value(const Row& row) {
    const int p = values_.size();
    std::uint8_t* record = values_.push();
    floats_.resize(static_cast<std::size_t>(kKiviGroup) * d_);
    codes_.resize(static_cast<std::size_t>(d_));
    for (int h = 0; h < heads_; ++h, record += value_stride()) {
      const fp16_t* from = row(h, p);
      for (int c = 0; c < d_; ++c) floats_[c] = fp16_to_fp32(from[c]);
      for (int i = 0; i < value_grids_; ++i) {
        const int begin = i * kKiviGroup;
        store_grid(kivi_quantize(&floats_[begin], std::min(kKiviGroup, d_ - begin), 1,
                                 options_.bits, Rounding::F16, &codes_[begin]),
                   record + i * kGridBytes);
      }
      pack_codes(codes_.data(), d_, options_.bits, record + value_grids_ * kGridBytes);
    }
  }

  // n keys of one group from position p on.
  void load_keys(int head, int p, int n, fp16_t* out, int capacity) const noexcept {
    const std::uint8_t* record =
        keys_.at(p / kKiviGroup) + static_cast<std::size_t>(head) * d_ * key_stride();
    fp16_t table[kMaxCodes];
    std::uint8_t codes[kKiviGroup];
    for (int c = 0; c < d_; ++c, record += key_stride()) {
      load_table(record, table);
      unpack_codes(record + kGridBytes, p % kKiviGroup, n, options_.bits, codes);
      fp16_t* to = out + static_cast<std::ptrdiff_t>(c) * capacity;
      for (int j = 0; j < n; ++j) to[j] = table[codes[j]];
    }
  }
  void load_value(int head, int p, fp16_t* out) const noexcept {
    const std::uint8_t* record = values_.at(p) + head * value_stride();
    fp16_t table[kMaxCodes];
    std::uint8_t codes[kKiviGroup];
    for (int i = 0; i < value_grids_; ++i) {
      const int begin = i * kKiviGroup;
      const int n = std::min(kKiviGroup, d_ - begin);
      load_table(record + i * kGridBytes, table);
      unpack_codes(record + value_grids_ * kGridBytes, begin, n, options_.bits, codes);
      for (int c = 0; c < n; ++c) out[begin + c] = table[codes[c]];
    }
  }

  int heads_, d_;
  KiviOptions options_;
  std::size_t key_codes_;                      // bytes of a channel's codes in a group
  std::size_t value_codes_;                    // bytes of a head's codes of a token
  int value_grids_;                            // a head and token; the last group may be shorter
  RecordStore keys_;                           // a group of tokens a record, all heads
  RecordStore values_;                         // a token a record, all heads
  std::vector<fp16_t> key_rows_, value_rows_;  // [ring][H][D]
  std::vector<float> floats_;                  // scratch of the writer
  std::vector<std::uint8_t> codes_;
};

}  // namespace

std::unique_ptr<RowCodec> make_kivi_codec(const CodecContext& context, const KiviOptions& options) {
  return std::make_unique<KiviCodec>(context.geometry, options);
}

}  // namespace qevict
