// KVQuant's storage: the first tokens in fp16, then codes with a token's outliers apart. Limits of
// the keys' channels and both codebooks are learnt once, from the first tokens that are enough.
#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/kvquant.h"
#include "kv/codecs.h"
#include "kv/record_store.h"

namespace qevict {
namespace {

constexpr int kMaxCodes = 16;
constexpr int kBins = 2048;  // of the histogram that a codebook is learnt from
constexpr int kTokensABlock = 32;
constexpr int kOutliersABlock = 64;
constexpr std::size_t kEndBytes = sizeof(std::uint32_t);
constexpr std::size_t kLimitBytes = 2 * sizeof(fp16_t);

struct Outlier {
  std::uint16_t channel;
  fp16_t value;
};

// Keys or values. A token's record, all KV heads: where its outliers end (u32), the limits (values
// only: fp16 lower, upper), the codes.
struct Side {
  std::size_t header = 0;
  RecordStore tokens, outliers;
  float lut[kMaxCodes] = {};
};

struct KeyChannel {
  NuqLimits limits;
  NuqGrid grid;
};

struct TokenRow {
  const fp16_t *k, *v;  // [D] of one KV head, post-RoPE
};

class KvquantCodec final : public RowCodec {
 public:
  KvquantCodec(const CodecContext& context, const KvquantOptions& options)
      : context_(context),
        heads_(context.geometry.n_kv_heads),
        d_(context.geometry.head_dim),
        channels_(heads_ * d_),
        n_codes_(1 << options.bits),
        options_(options) {
    const std::size_t codes = packed_bytes(static_cast<std::size_t>(channels_), options.bits);
    const std::size_t row = std::size_t{2} * channels_ * sizeof(fp16_t);
    first_ = RecordStore(row, 1);
    waiting_ = RecordStore(row, 1);
    keys_.header = kEndBytes;
    values_.header = kEndBytes + kLimitBytes;
    for (Side* side : {&keys_, &values_}) {
      side->tokens = RecordStore(side->header + codes, kTokensABlock);
      side->outliers = RecordStore(sizeof(Outlier), kOutliersABlock);
    }
    floats_.resize(static_cast<std::size_t>(channels_));
    sorted_.resize(floats_.size());
    outlier_.resize(floats_.size());
    codes_.resize(floats_.size());
  }

  std::unique_ptr<RowCodec> clone() const override { return std::make_unique<KvquantCodec>(*this); }

  TierBytes bytes() const override {
    TierBytes bytes;
    bytes.sink = first_.bytes();
    bytes.local = waiting_.bytes();
    bytes.quantized = key_channels_.size() * sizeof(KeyChannel);
    for (const Side* side : {&keys_, &values_}) {
      bytes.quantized += side->tokens.bytes() + side->outliers.bytes();
      if (calibrated()) bytes.quantized += n_codes_ * sizeof(float);
    }
    return bytes;
  }
  std::size_t reserved_bytes() const override {
    std::size_t bytes = first_.reserved_bytes() + waiting_.reserved_bytes();
    for (const Side* side : {&keys_, &values_}) {
      bytes += side->tokens.reserved_bytes() + side->outliers.reserved_bytes();
    }
    return bytes;
  }

  void load(int kv_head, int first, int n, const ChunkRows& out) const noexcept override {
    for (int p = first; p < first + n; ++p) {
      const int at = p - first;
      fp16_t* v = out.v + static_cast<std::ptrdiff_t>(at) * d_;
      const int token = p - first_.size();
      if (token >= 0 && token < keys_.tokens.size()) {
        load_key(kv_head, token, p, out.k + at, out.capacity);
        load_value(kv_head, token, v);
      } else {
        const TokenRow row = fp16_row(kv_head, p);
        for (int c = 0; c < d_; ++c) {
          out.k[static_cast<std::ptrdiff_t>(c) * out.capacity + at] = row.k[c];
        }
        std::copy_n(row.v, d_, v);
      }
    }
  }

  void append_prompt(const CodecRows& rows, const ProbeRows&) override {
    const auto row_of = [&](int head, int p) -> TokenRow {
      if (p < n_tokens_) return fp16_row(head, p);
      const std::ptrdiff_t at = (static_cast<std::ptrdiff_t>(head) * rows.capacity + p) * d_;
      return {rows.k + at, rows.v + at};
    };
    const int n_first = std::min(options_.n_first, rows.n_rows);
    for (int p = first_.size(); p < n_first; ++p) store(first_, p, row_of);
    const int n_before = first_.size() + keys_.tokens.size();
    if (calibrated() || rows.n_rows - n_before >= options_.calibration) {
      quantise(n_before, rows.n_rows - n_before, row_of);
      waiting_.clear();
    } else {
      for (int p = n_before + waiting_.size(); p < rows.n_rows; ++p) store(waiting_, p, row_of);
    }
    n_tokens_ = rows.n_rows;
  }

  void reserve_row() override { (n_tokens_ < options_.n_first ? first_ : waiting_).reserve_one(); }
  void push_row() noexcept override {
    ++n_tokens_;
    (n_tokens_ <= options_.n_first ? first_ : waiting_).push();
  }
  void write(int kv_head, const float* k, const float* v) noexcept override {
    RecordStore& rows = n_tokens_ <= options_.n_first ? first_ : waiting_;
    auto* to = reinterpret_cast<fp16_t*>(rows.at(rows.size() - 1)) + kv_head * d_;
    for (int c = 0; c < d_; ++c) {
      to[c] = fp32_to_fp16(k[c]);
      to[channels_ + c] = fp32_to_fp16(v[c]);
    }
  }
  void end_step() override {
    if (waiting_.size() == 0 || (!calibrated() && waiting_.size() < options_.calibration)) return;
    quantise(first_.size() + keys_.tokens.size(), waiting_.size(),
             [this](int head, int p) { return fp16_row(head, p); });
    waiting_.clear();
  }

 private:
  bool calibrated() const { return !key_channels_.empty(); }

  // A position that is held in fp16: one of the first or one that waits.
  TokenRow fp16_row(int head, int p) const {
    const std::uint8_t* row =
        p < first_.size() ? first_.at(p) : waiting_.at(p - (n_tokens_ - waiting_.size()));
    const auto* k = reinterpret_cast<const fp16_t*>(row) + head * d_;
    return {k, k + channels_};
  }
  template <typename RowOf>
  void store(RecordStore& rows, int p, const RowOf& row_of) {
    auto* to = reinterpret_cast<fp16_t*>(rows.push());
    for (int h = 0; h < heads_; ++h) {
      const TokenRow row = row_of(h, p);
      std::copy_n(row.k, d_, to + h * d_);
      std::copy_n(row.v, d_, to + channels_ + h * d_);
    }
  }

  void angles(int position, float* cos, float* sin) const noexcept {
    const WindowPhases& table = *context_.angles;
    const float* coarse_cos = table.coarse_cos(position);
    const float* coarse_sin = table.coarse_sin(position);
    const float* fine_cos = table.fine_cos(position);
    const float* fine_sin = table.fine_sin(position);
    for (int i = 0; i < d_ / 2; ++i) {
      cos[i] = coarse_cos[i] * fine_cos[i] - coarse_sin[i] * fine_sin[i];
      sin[i] = coarse_sin[i] * fine_cos[i] + coarse_cos[i] * fine_sin[i];
    }
  }
  // A key before RoPE, rounded to fp16: what the peer's quantiser is given.
  void unrotate(const fp16_t* k, int position, float* out) const {
    float cos[kMaxHeadDim / 2], sin[kMaxHeadDim / 2];
    angles(position, cos, sin);
    for (int c = 0; c < d_; ++c) out[c] = fp16_to_fp32(k[c]);
    rope_rotate(*context_.rope, cos, sin, -1.0F, out);
    for (int c = 0; c < d_; ++c) out[c] = round_to(Rounding::F16, out[c]);
  }

  // Positions first .. first + n - 1, which follow the quantised ones.
  template <typename RowOf>
  void quantise(int first, int n, const RowOf& row_of) {
    if (!calibrated()) calibrate(first, n, row_of);
    for (int p = first; p < first + n; ++p) {
      for (int h = 0; h < heads_; ++h) unrotate(row_of(h, p).k, p, &floats_[h * d_]);
      for (int c = 0; c < channels_; ++c) {
        const KeyChannel& channel = key_channels_[c];
        outlier_[c] = kvquant_key_outlier(channel.limits, floats_[c]) ? 1 : 0;
        encode(keys_, c, channel.grid);
      }
      finish(keys_);
      const NuqLimits limits = value_limits(p, row_of);
      const NuqGrid grid = kvquant_grid(limits, Rounding::F32);
      for (int c = 0; c < channels_; ++c) encode(values_, c, grid);
      const fp16_t pair[2] = {fp32_to_fp16(limits.lower), fp32_to_fp16(limits.upper)};
      std::memcpy(finish(values_) + kEndBytes, pair, kLimitBytes);
    }
  }

  template <typename RowOf>
  void calibrate(int first, int n, const RowOf& row_of) {
    key_channels_.resize(static_cast<std::size_t>(channels_));
    std::vector<std::int64_t> key_bins(kBins), value_bins(kBins);
    std::vector<float> head(static_cast<std::size_t>(n) * d_), scratch(static_cast<std::size_t>(n));
    for (int h = 0; h < heads_; ++h) {
      for (int i = 0; i < n; ++i) {
        unrotate(row_of(h, first + i).k, first + i, &head[static_cast<std::size_t>(i) * d_]);
      }
      for (int c = 0; c < d_; ++c) {
        KeyChannel& channel = key_channels_[h * d_ + c];
        channel.limits = kvquant_channel_limits(&head[c], n, d_, options_.sparsity, scratch.data());
        channel.grid = kvquant_grid(channel.limits, Rounding::F16);
        for (std::size_t i = c; i < head.size(); i += d_) {
          if (kvquant_key_outlier(channel.limits, head[i])) continue;
          ++key_bins[kvquant_bin(kvquant_normalise(channel.grid, head[i]), kBins)];
        }
      }
    }
    for (int i = 0; i < n; ++i) {
      const NuqGrid grid = kvquant_grid(value_limits(first + i, row_of), Rounding::F32);
      for (int c = 0; c < channels_; ++c) {
        if (outlier_[c] == 0) ++value_bins[kvquant_bin(kvquant_normalise(grid, floats_[c]), kBins)];
      }
    }
    kvquant_codebook(key_bins.data(), kBins, n_codes_, keys_.lut);
    kvquant_codebook(value_bins.data(), kBins, n_codes_, values_.lut);
  }

  // Leaves the token's values in floats_ and which of them are outliers in outlier_.
  template <typename RowOf>
  NuqLimits value_limits(int p, const RowOf& row_of) {
    for (int h = 0; h < heads_; ++h) {
      const fp16_t* v = row_of(h, p).v;
      for (int c = 0; c < d_; ++c) floats_[h * d_ + c] = fp16_to_fp32(v[c]);
    }
    return kvquant_value_limits(floats_.data(), channels_, options_.sparsity, sorted_.data(),
                                outlier_.data());
  }

  void encode(Side& side, int c, const NuqGrid& grid) {
    codes_[c] = 0;
    if (outlier_[c] != 0) {
      const Outlier outlier{static_cast<std::uint16_t>(c), fp32_to_fp16(floats_[c])};
      std::memcpy(side.outliers.push(), &outlier, sizeof outlier);
    } else {
      codes_[c] = kvquant_code(side.lut, n_codes_, kvquant_normalise(grid, floats_[c]));
    }
  }
  // The token's record, without limits.
  std::uint8_t* finish(Side& side) {
    std::uint8_t* record = side.tokens.push();
    const auto end = static_cast<std::uint32_t>(side.outliers.size());
    std::memcpy(record, &end, kEndBytes);
    pack_codes(codes_.data(), channels_, options_.bits, record + side.header);
    return record;
  }

  // Calls put(channel of the head, value) for the token's outliers.
  template <typename Put>
  void each_outlier(const Side& side, int head, int token, const Put& put) const noexcept {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    if (token > 0) std::memcpy(&begin, side.tokens.at(token - 1), kEndBytes);
    std::memcpy(&end, side.tokens.at(token), kEndBytes);
    for (std::uint32_t i = begin; i < end; ++i) {
      Outlier outlier;
      std::memcpy(&outlier, side.outliers.at(static_cast<int>(i)), sizeof outlier);
      const int c = outlier.channel - head * d_;
      if (c >= 0 && c < d_) put(c, outlier.value);
    }
  }
  void load_key(int head, int token, int position, fp16_t* out, int capacity) const noexcept {
    std::uint8_t codes[kMaxHeadDim];
    float x[kMaxHeadDim], cos[kMaxHeadDim / 2], sin[kMaxHeadDim / 2];
    unpack_codes(keys_.tokens.at(token) + keys_.header, std::ptrdiff_t{head} * d_, d_,
                 options_.bits, codes);
    for (int c = 0; c < d_; ++c) {
      const NuqGrid& grid = key_channels_[head * d_ + c].grid;
      x[c] = fp16_to_fp32(kvquant_value(grid, keys_.lut[codes[c]], Rounding::F32));
    }
    each_outlier(keys_, head, token, [&](int c, fp16_t value) { x[c] = fp16_to_fp32(value); });
    angles(position, cos, sin);
    rope_rotate(*context_.rope, cos, sin, 1.0F, x);
    for (int c = 0; c < d_; ++c) {
      out[static_cast<std::ptrdiff_t>(c) * capacity] = fp32_to_fp16(x[c]);
    }
  }
  void load_value(int head, int token, fp16_t* out) const noexcept {
    const std::uint8_t* record = values_.tokens.at(token);
    fp16_t pair[2], table[kMaxCodes];
    std::memcpy(pair, record + kEndBytes, kLimitBytes);
    kvquant_table(kvquant_grid({fp16_to_fp32(pair[0]), fp16_to_fp32(pair[1])}, Rounding::F32),
                  values_.lut, n_codes_, Rounding::F32, table);
    std::uint8_t codes[kMaxHeadDim];
    unpack_codes(record + values_.header, std::ptrdiff_t{head} * d_, d_, options_.bits, codes);
    for (int c = 0; c < d_; ++c) out[c] = table[codes[c]];
    each_outlier(values_, head, token, [&](int c, fp16_t value) { out[c] = value; });
  }

  CodecContext context_;
  int heads_, d_, channels_, n_codes_;
  KvquantOptions options_;
  RecordStore first_, waiting_;  // fp16 rows: K [H][D], then V [H][D]
  Side keys_, values_;
  std::vector<KeyChannel> key_channels_;  // [H * D], once calibrated
  // Scratch of the writer, one token of all heads.
  std::vector<float> floats_, sorted_;
  std::vector<std::uint8_t> outlier_, codes_;
};

}  // namespace

std::unique_ptr<RowCodec> make_kvquant_codec(const CodecContext& context,
                                             const KvquantOptions& options) {
  return std::make_unique<KvquantCodec>(context, options);
}

}  // namespace qevict
