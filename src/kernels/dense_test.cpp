// The dense passes of every table against the scalar ones.
#include "kernels/dense.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "kernels/codec.h"
#include "kernels/kernels.h"

namespace qevict {
namespace {

struct Case {
  int n_q, n_keys, head_dim;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int dim : {4, 12, 48, 64, 80, 128, 256}) all.push_back({7, 150, dim});
  for (const int n : {1, 3, 16, 127, 128, 129, 300}) all.push_back({5, n, 64});
  for (const int n : {1, 6, 8, 9, 33}) all.push_back({n, 40, 32});
  return all;
}

// Buffers have exactly the documented size, so that a sanitizer sees an access beyond it.
class Dense : public ::testing::Test {
 protected:
  std::vector<float> floats(std::size_t n) {
    std::vector<float> x(n);
    for (float& f : x) f = normal_(random_);
    return x;
  }
  std::vector<fp16_t> halves(std::size_t n) {
    std::vector<fp16_t> x;
    for (const float f : floats(n)) x.push_back(fp32_to_fp16(f));
    return x;
  }
  void* scratch(const Case& c) {
    const std::size_t bytes = (dense_scratch_bytes(c.n_q, c.head_dim) + 63) / 64 * 64;
    scratch_.reset(std::aligned_alloc(64, bytes));
    return scratch_.get();
  }
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  // A Quantized group of random windows, brought back for the second KV head.
  struct Restored {
    Restored(Dense& dense, const Geometry& geometry, int n) : g(geometry), lanes(n) {
      const RopeSpec rope = RopeSpec::plain(g.pairing, g.head_dim, 1e4);
      group.resize(lanes * g.quantized_window_bytes());
      std::vector<std::uint8_t> block(g.quantized_window_bytes());
      std::vector<float> work(quantize_scratch_floats(g));
      const std::size_t all = static_cast<std::size_t>(g.n_kv_heads) * g.window * g.head_dim;
      for (int lane = 0; lane < lanes; ++lane) {
        quantize_window(g, rope, 0, dense.halves(all).data(), dense.halves(all).data(),
                        block.data(), work.data());
        quant_group_store(g, group.data(), lanes, lane, block.data());
      }
      std::int32_t ids[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) ids[lane] = lane * 37;
      phases.resize(static_cast<std::size_t>(g.head_dim) * kLanes);
      reference_kernels().window_phases({rope, 5, g.window, 1000}, ids, lanes, phases.data());
      turn.resize(static_cast<std::size_t>(g.window) * g.head_dim);
      for (int j = 0; j < g.window; ++j) {
        float* cos = &turn[static_cast<std::size_t>(j) * g.head_dim];
        rope_angles(rope, j, cos, cos + g.head_dim / 2);
      }
    }
    // Keys of all windows, then values.
    std::vector<float> rows(const KernelTable& table) const {
      const std::size_t n = turn.size();
      std::vector<fp16_t> out(2 * lanes * n);
      const std::size_t bytes = (dense_restore_scratch_bytes(g) + 63) / 64 * 64;
      const std::unique_ptr<void, Free> scratch(std::aligned_alloc(64, bytes));
      const GroupRef ref{group.data(), lanes};
      DenseRestoreParams p{&g, 1, &ref, {}, phases.data(), turn.data(), {}, {}, scratch.get()};
      for (int lane = 0; lane < lanes; ++lane) {
        p.k[lane] = &out[lane * n];
        p.v[lane] = &out[(lanes + lane) * n];
      }
      table.dense->restore(p);
      std::vector<float> wide;
      for (const fp16_t x : out) wide.push_back(fp16_to_fp32(x));
      return wide;
    }
    Geometry g;
    int lanes;
    std::vector<std::uint8_t> group;
    std::vector<float> phases, turn;
  };
  std::mt19937 random_{5};
  std::normal_distribution<float> normal_;
  std::unique_ptr<void, Free> scratch_;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance) << what << " " << i;
  }
}

TEST_F(Dense, ScoresAndValuesMatchTheReference) {
  for (const Case& c : cases()) {
    const std::string what =
        std::to_string(c.n_q) + " " + std::to_string(c.n_keys) + " " + std::to_string(c.head_dim);
    const std::ptrdiff_t q_stride = c.head_dim + 3;
    const std::ptrdiff_t s_stride = c.n_keys + 5;
    const auto q = floats(c.n_q * q_stride);
    const auto k = halves(static_cast<std::size_t>(c.n_keys) * c.head_dim);
    const auto p = floats(c.n_q * s_stride);
    const auto out = floats(c.n_q * q_stride);
    const auto scores = [&](const KernelTable& table) {
      std::vector<float> s(c.n_q * s_stride, -7.0F);
      table.dense->scores({q.data(), q_stride, c.n_q, 0.3F, k.data(), c.n_keys, c.head_dim,
                           s.data(), s_stride, scratch(c)});
      return s;
    };
    const auto values = [&](const KernelTable& table, bool add) {
      std::vector<float> o = out;
      table.dense->values({p.data(), s_stride, c.n_q, k.data(), c.n_keys, c.head_dim, o.data(),
                           q_stride, add, scratch(c)});
      return o;
    };
    for (const std::string& isa : available_isas()) {
      const KernelTable& table = *find_kernels(isa);
      expect_near(scores(table), scores(reference_kernels()), 2e-5, isa + " scores " + what);
      for (const bool add : {false, true}) {
        expect_near(values(table, add), values(reference_kernels(), add), 1e-4,
                    isa + " values " + what);
      }
    }
  }
}

TEST_F(Dense, RestoredRowsMatchTheReference) {
  for (const int dim : {8, 12, 64, 96, 128}) {
    for (const RopePairing pairing : {RopePairing::Neox, RopePairing::Interleaved}) {
      for (const int window : {4, 8, 24}) {
        for (const int lanes : {1, 5, 16}) {
          const Geometry g{4, 2, dim, window, dim == 12 ? 4 : 2, pairing};
          const Restored restored(*this, g, lanes);
          const std::vector<float> want = restored.rows(reference_kernels());
          for (const std::string& isa : available_isas()) {
            // A unit of fp16's last place where the fp32 results straddle a rounding boundary.
            expect_near(restored.rows(*find_kernels(isa)), want, 0x1p-8, isa);
          }
        }
      }
    }
  }
}

TEST_F(Dense, SoftmaxRowsSumToOneAndHideTheRest) {
  for (const int n : {1, 4, 15, 16, 17, 100, 1000}) {
    for (const int hidden : {0, 1, 20}) {
      std::vector<float> start = floats(n + hidden);
      for (float& f : start) f *= 20.0F;
      std::vector<float> want = start;
      reference_kernels().dense->softmax_row(want.data(), n, n + hidden);
      for (const std::string& isa : available_isas()) {
        std::vector<float> got = start;
        find_kernels(isa)->dense->softmax_row(got.data(), n, n + hidden);
        expect_near(got, want, 1e-6, isa);
        double sum = 0.0;
        for (const float x : got) sum += x;
        EXPECT_NEAR(sum, 1.0, 1e-5);
        for (int i = n; i < n + hidden; ++i) EXPECT_EQ(got[i], 0.0F);
      }
    }
  }
}

TEST_F(Dense, ColumnSumsMatchTheReference) {
  for (const float power : {1.0F, 2.0F, 1.5F}) {
    std::vector<float> p = floats(9 * 55);
    for (float& f : p) f = std::fabs(f);
    std::vector<float> want(50);
    reference_kernels().dense->column_sums(p.data(), 55, 9, 50, power, want.data());
    for (const std::string& isa : available_isas()) {
      std::vector<float> got(50, 3.0F);
      find_kernels(isa)->dense->column_sums(p.data(), 55, 9, 50, power, got.data());
      expect_near(got, want, 1e-4, isa);
    }
  }
}

}  // namespace
}  // namespace qevict
