// The row codecs on random rows: bytes are the formula's at every length, rows come back close,
// and what is not quantised comes back exactly.
#include "kv/row_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "kernels/kivi.h"
#include "kernels/kvquant.h"
#include "kv/codecs.h"

namespace qevict {
namespace {

// Rows of one layer by position, and a codec that is fed with them.
class Feed {
 public:
  explicit Feed(int head_dim = 16, int most = 700) : most_(most) {
    g_.n_heads = 4;
    g_.n_kv_heads = 2;
    g_.head_dim = head_dim;
    rope_ = RopeSpec::plain(g_.pairing, head_dim, 10000.0);
    angles_ = WindowPhases(rope_, 0, 1, most);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const std::size_t n = std::size_t{2} * most * head_dim;
    for (std::size_t i = 0; i < n; ++i) {
      k_.push_back(fp32_to_fp16(normal(random)));
      v_.push_back(fp32_to_fp16(normal(random)));
    }
  }
  CodecContext context() const { return {g_, &rope_, &angles_}; }
  const Geometry& geometry() const { return g_; }
  const fp16_t* k(int head, int p) const { return &k_[at(head, p)]; }
  const fp16_t* v(int head, int p) const { return &v_[at(head, p)]; }

  // The next n tokens, as a prompt.
  void prompt(RowCodec& codec, int n) const {
    const int before = codec.n_tokens();
    const int d = g_.head_dim;
    std::vector<fp16_t> k(std::size_t{2} * (before + n) * d), v(k.size());
    std::vector<fp16_t> column(static_cast<std::size_t>(d));
    for (int h = 0; h < 2; ++h) {
      for (int r = 0; r < before + n; ++r) {
        const std::ptrdiff_t to = (std::ptrdiff_t{h} * (before + n) + r) * d;
        if (r < before) {
          codec.load(h, r, 1, {&k[to], &v[to], 1});
        } else {
          std::copy_n(this->k(h, r), d, &k[to]);
          std::copy_n(this->v(h, r), d, &v[to]);
        }
      }
    }
    const std::vector<int> rows = codec.probe_rows(n);
    std::vector<float> q(rows.size() * 4 * d);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 37 % 19) * 0.1F - 0.9F;
    codec.append_prompt({k.data(), v.data(), before + n, before + n}, {rows, q.data()});
  }
  void step(RowCodec& codec) const {
    codec.reserve_row();
    codec.push_row();
    const int p = codec.n_tokens() - 1;
    std::vector<float> k(static_cast<std::size_t>(g_.head_dim)), v(k.size());
    for (int h = 0; h < 2; ++h) {
      std::transform(this->k(h, p), this->k(h, p) + g_.head_dim, k.begin(), fp16_to_fp32);
      std::transform(this->v(h, p), this->v(h, p) + g_.head_dim, v.begin(), fp16_to_fp32);
      codec.write(h, k.data(), v.data());
    }
    if (codec.wants_mass()) {
      std::vector<float> mass(std::size_t{2} * codec.n_tokens());
      for (std::size_t i = 0; i < mass.size(); ++i) mass[i] = static_cast<float>(i * 31 % 17);
      codec.add_mass(mass.data());
    }
    codec.end_step();
  }

 private:
  std::size_t at(int head, int p) const {
    return (static_cast<std::size_t>(head) * most_ + p) * g_.head_dim;
  }
  int most_;
  Geometry g_;
  RopeSpec rope_;
  WindowPhases angles_;
  std::vector<fp16_t> k_, v_;
};

struct Rows {
  std::vector<fp16_t> k, v;  // [n][D]
  bool operator==(const Rows&) const = default;
};

// All rows of a head, read in pieces that are no multiple of anything.
Rows read(const RowCodec& codec, int head, int d) {
  Rows rows;
  constexpr int kPiece = 37;
  for (int first = 0; first < codec.n_tokens(); first += kPiece) {
    const int n = std::min(kPiece, codec.n_tokens() - first);
    std::vector<fp16_t> k(std::size_t{48} * d), v(k.size());
    codec.load(head, first, n, {k.data(), v.data(), 48});
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < d; ++c) rows.k.push_back(k[c * 48 + r]);
    }
    rows.v.insert(rows.v.end(), v.begin(), v.begin() + n * d);
  }
  return rows;
}

double mean_square(const Feed& feed, const Rows& rows, int head, int first, int end, bool keys) {
  const int d = feed.geometry().head_dim;
  double sum = 0.0;
  for (int p = first; p < end; ++p) {
    const fp16_t* want = keys ? feed.k(head, p) : feed.v(head, p);
    for (int c = 0; c < d; ++c) {
      const double got = fp16_to_fp32((keys ? rows.k : rows.v)[std::size_t(p) * d + c]);
      sum += (got - fp16_to_fp32(want[c])) * (got - fp16_to_fp32(want[c]));
    }
  }
  return sum / std::max(1, (end - first) * d);
}

TEST(KiviCodec, HoldsTheFormulasBytesAtEveryLength) {
  for (const int bits : {2, 4}) {
    for (const int d : {16, 64, 80}) {  // the last group of channels of 16 and 80 is shorter
      const Feed feed(d, 200);
      const auto codec = make_kivi_codec(feed.context(), {bits, 64});
      feed.prompt(*codec, 51);
      for (; codec->n_tokens() < 190; feed.step(*codec)) {
        const KiviSplit split = kivi_split(codec->n_tokens(), 64);
        const std::size_t key_group = 2U * d * (32 * bits / 8 + 4);
        const std::size_t value = 2U * (d * bits / 8 + (d + 31) / 32 * 4);
        const TierBytes bytes = codec->bytes();
        EXPECT_EQ(bytes.quantized, split.keys / 32 * key_group + split.values * value);
        EXPECT_EQ(bytes.local, 2U * 2 * d * (2 * codec->n_tokens() - split.keys - split.values));
        EXPECT_EQ(bytes.total(), bytes.quantized + bytes.local);
      }
    }
  }
}

TEST(KiviCodec, ReturnsTheResidualExactlyAndTheRestClosely) {
  const Feed feed;
  const auto codec = make_kivi_codec(feed.context(), {4, 32});
  feed.prompt(*codec, 70);
  for (int i = 0; i < 5; ++i) feed.step(*codec);
  for (int h = 0; h < 2; ++h) {
    const Rows rows = read(*codec, h, 16);
    EXPECT_EQ(mean_square(feed, rows, h, 64, 75, true), 0.0);
    EXPECT_EQ(mean_square(feed, rows, h, 43, 75, false), 0.0);
    // 15 steps over about 4 standard deviations: an error of step / sqrt(12).
    EXPECT_NEAR(mean_square(feed, rows, h, 0, 64, true), 0.006, 0.003);
    EXPECT_NEAR(mean_square(feed, rows, h, 0, 43, false), 0.004, 0.003);
  }
}

TEST(KiviCodec, IsTheSameWhetherTokensComeAsPromptsOrAsSteps) {
  const Feed feed;
  const auto at_once = make_kivi_codec(feed.context(), {2, 32});
  const auto mixed = make_kivi_codec(feed.context(), {2, 32});
  feed.prompt(*at_once, 167);
  feed.prompt(*mixed, 45);
  for (int i = 0; i < 50; ++i) feed.step(*mixed);
  feed.prompt(*mixed, 72);
  for (int h = 0; h < 2; ++h) EXPECT_EQ(read(*at_once, h, 16), read(*mixed, h, 16));
  EXPECT_EQ(at_once->bytes().total(), mixed->bytes().total());
}

TEST(KvquantCodec, StaysInFp16UntilThereIsEnoughToLearnFrom) {
  const Feed feed;
  const auto codec = make_kvquant_codec(feed.context(), {4, 0.99, 3, 64});
  feed.prompt(*codec, 40);
  const std::size_t row = 2 * 2 * 16 * 2;
  for (; codec->n_tokens() < 67; feed.step(*codec)) {
    EXPECT_EQ(codec->bytes().sink, 3 * row);
    EXPECT_EQ(codec->bytes().local, (codec->n_tokens() - 3) * row);
    EXPECT_EQ(codec->bytes().quantized, 0U);
  }
  EXPECT_EQ(codec->bytes().local, 0U);
  EXPECT_GT(codec->bytes().quantized, 0U);
}

TEST(KvquantCodec, HoldsCodesLimitsOutliersAndCodebooks) {
  for (const int bits : {2, 3, 4}) {
    const Feed feed;
    const auto codec = make_kvquant_codec(feed.context(), {bits, 0.99, 5, 128});
    feed.prompt(*codec, 300);
    for (int i = 0; i < 20; ++i) feed.step(*codec);
    const int n = 315;
    // 32 channels: 2 outliers a token among the values. Of the keys those of the calibration are
    // 2 x 2 a channel (0.5 % of 295 tokens at either end), the rest by chance.
    const std::size_t tokens = n * (2 * (4 + 32 * bits / 8) + 4);
    const std::size_t constant = 32 * 16 + 2 * (1U << bits) * 4;
    const std::size_t least = tokens + constant + 4 * (2 * n + 4 * 32);
    EXPECT_GE(codec->bytes().quantized, least) << bits;
    EXPECT_LE(codec->bytes().quantized, least + 4 * 40) << bits;
    EXPECT_EQ(codec->bytes().quantized % 4, 0U);
    EXPECT_EQ(codec->bytes().sink, 5U * 2 * 2 * 16 * 2);
  }
}

TEST(KvquantCodec, ReturnsRowsCloselyAndMoreBitsCloser) {
  const Feed feed(64);
  double before = 1e9;
  for (const int bits : {2, 3, 4}) {
    const auto codec = make_kvquant_codec(feed.context(), {bits, 0.99, 5, 128});
    feed.prompt(*codec, 400);
    for (int i = 0; i < 50; ++i) feed.step(*codec);
    const Rows rows = read(*codec, 1, 64);
    EXPECT_EQ(mean_square(feed, rows, 1, 0, 5, true), 0.0);
    EXPECT_EQ(mean_square(feed, rows, 1, 0, 5, false), 0.0);
    const double keys = mean_square(feed, rows, 1, 5, 450, true);
    const double values = mean_square(feed, rows, 1, 5, 450, false);
    // Lloyd-Max of a normal variable; without its outliers a little less.
    const double ideal[] = {0.117, 0.035, 0.0095};
    for (const double error : {keys, values}) {
      EXPECT_LT(error, ideal[bits - 2]) << bits;
      EXPECT_GT(error, ideal[bits - 2] * 0.5) << bits;
    }
    EXPECT_LT(keys, before);
    before = keys;
  }
}

TEST(KvquantCodec, KeepsItsCalibrationForAnAppendedPrompt) {
  const Feed feed;
  const auto codec = make_kvquant_codec(feed.context(), {4, 0.99, 5, 128});
  feed.prompt(*codec, 200);
  const Rows before = read(*codec, 0, 16);
  feed.prompt(*codec, 100);
  Rows after = read(*codec, 0, 16);
  after.k.resize(before.k.size());
  after.v.resize(before.v.size());
  EXPECT_EQ(before, after);
  EXPECT_EQ(codec->n_tokens(), 300);
}

TEST(ZipcacheCodec, HoldsTheFormulasBytesAtEveryLength) {
  const Feed feed;
  const auto codec = make_zipcache_codec(feed.context(), {0.4, 100});
  feed.prompt(*codec, 61);
  std::size_t quantised = 61;
  std::size_t low = 24;  // floor(0.4 * 61)
  for (; codec->n_tokens() < 400; feed.step(*codec)) {
    const auto n = static_cast<std::size_t>(codec->n_tokens());
    if (n - quantised == 100) quantised = n, low += 40;
    // 32 channels: 16 bytes of 4-bit codes, 8 of 2-bit ones, for keys and for values with a grid.
    EXPECT_EQ(codec->bytes().quantized,
              (quantised - low) * (16 + 16 + 4) + low * (8 + 8 + 4) + 2 * 32 * 4 + 32 * 2);
    EXPECT_EQ(codec->bytes().local, (n - quantised) * 2 * 2 * 16 * 2);
  }
}

TEST(ZipcacheCodec, KeepsEveryTokenOfEveryHeadThroughRecompression) {
  const Feed feed;
  const auto codec = make_zipcache_codec(feed.context(), {0.4, 100});
  feed.prompt(*codec, 150);
  for (int i = 0; i < 230; ++i) feed.step(*codec);
  feed.prompt(*codec, 40);
  EXPECT_EQ(codec->n_tokens(), 420);
  for (int h = 0; h < 2; ++h) {
    const Rows rows = read(*codec, h, 16);
    std::set<int> found;
    for (int r = 0; r < 420; ++r) {
      int nearest = -1;
      double best = 1e9;
      for (int p = 0; p < 420; ++p) {
        double distance = 0.0;
        for (int c = 0; c < 16; ++c) {
          const double dk = fp16_to_fp32(rows.k[r * 16 + c]) - fp16_to_fp32(feed.k(h, p)[c]);
          const double dv = fp16_to_fp32(rows.v[r * 16 + c]) - fp16_to_fp32(feed.v(h, p)[c]);
          distance += dk * dk + dv * dv;
        }
        if (distance < best) best = distance, nearest = p;
      }
      found.insert(nearest);
    }
    EXPECT_EQ(found.size(), 420U) << "head " << h;
  }
}

TEST(ZipcacheCodec, ProbesAreTheNewestRowsAndAsManyRandomOnes) {
  const Feed feed;
  const auto codec = make_zipcache_codec(feed.context(), {0.4, 100});
  for (const int n : {1, 19, 61, 80, 140}) {
    const std::vector<int> rows = codec->probe_rows(n);
    const int newest = (n + 19) / 20;
    ASSERT_EQ(rows.size(), static_cast<std::size_t>(newest + n / 20)) << n;
    for (int i = 0; i < newest; ++i) EXPECT_EQ(rows[i], n - newest + i);
    for (std::size_t i = newest; i < rows.size(); ++i) {
      EXPECT_GE(rows[i], 0);
      EXPECT_LT(rows[i], n - newest);
    }
    EXPECT_EQ(rows, codec->probe_rows(n));
  }
}

TEST(ZipcacheCodec, TheStepThatFillsTheBufferSplitsIt) {
  const Feed feed;
  const auto codec = make_zipcache_codec(feed.context(), {0.4, 10});
  feed.prompt(*codec, 30);
  for (int i = 0; i < 10; ++i) {
    codec->reserve_row();
    codec->push_row();
    EXPECT_EQ(codec->wants_mass(), i == 9);
    const std::vector<float> row(16, static_cast<float>(i));
    for (int h = 0; h < 2; ++h) codec->write(h, row.data(), row.data());
  }
  // Head 0 looks at the even buffered tokens, head 1 at the first six.
  std::vector<float> mass(2 * 40);
  for (int i = 0; i < 10; ++i) {
    mass[30 + i] = i % 2 == 0 ? 0.1F : 0.01F;
    mass[70 + i] = i < 6 ? 0.1F : 0.01F;
  }
  codec->add_mass(mass.data());
  codec->end_step();
  // The important ones stand after the 18 of the prompt: 6 of 10, ties go to the older token.
  const auto seen = [&](int head) {
    std::vector<int> tokens;
    std::vector<fp16_t> k(16), v(16);
    for (int r = 18; r < 24; ++r) {
      codec->load(head, r, 1, {k.data(), v.data(), 1});
      tokens.push_back(static_cast<int>(std::lround(fp16_to_fp32(k[0]))));
    }
    return tokens;
  };
  // Of the odd ones the four oldest are the least important: the fifth stays.
  const std::vector<int> even = seen(0), first = seen(1);
  const std::vector<int> want_even = {0, 2, 4, 6, 8, 9}, want_first = {0, 1, 2, 3, 4, 5};
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(even[i], want_even[i], 1) << i;
    EXPECT_NEAR(first[i], want_first[i], 1) << i;
  }
}

TEST(RowCodec, ClonesAreIndependent) {
  const Feed feed;
  for (int kind = 0; kind < 3; ++kind) {
    const auto codec = kind == 0   ? make_kivi_codec(feed.context(), {})
                       : kind == 1 ? make_kvquant_codec(feed.context(), {})
                                   : make_zipcache_codec(feed.context(), {});
    feed.prompt(*codec, 180);
    const Rows before = read(*codec, 0, 16);
    const auto copy = codec->clone();
    feed.prompt(*copy, 90);
    for (int i = 0; i < 110; ++i) feed.step(*copy);
    EXPECT_EQ(read(*codec, 0, 16), before);
    // What the clone has become, the original becomes too.
    feed.prompt(*codec, 90);
    for (int i = 0; i < 110; ++i) feed.step(*codec);
    EXPECT_EQ(read(*codec, 1, 16), read(*copy, 1, 16));
    EXPECT_EQ(codec->bytes().total(), copy->bytes().total());
  }
}

}  // namespace
}  // namespace qevict
