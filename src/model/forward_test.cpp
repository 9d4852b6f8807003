#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <vector>

#include "gguf_writer.h"
#include "model/model.h"
#include "reference_attention.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

// Counts every C++ allocation of this program, for the test that decode() makes none.
void* operator new(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace qevict {
namespace {

constexpr int kRows = 12;

class ForwardTest : public testing::Test {
 protected:
  static const Model& model() {
    static const std::unique_ptr<Model> kModel = [] {
      const std::string path = temp_model_path("forward");
      TinyModel tiny;
      tiny.head_dim = 16, tiny.n_ff = 96, tiny.n_layers = 3, tiny.arch = "qwen3", tiny.n_embd = 48;
      EXPECT_EQ(write_tiny_model(path, tiny), "");
      auto model = Model::load(path, {});
      EXPECT_TRUE(model) << model.error().message;
      std::filesystem::remove(path);  // stays mapped
      return std::move(*model);
    }();
    return *kModel;
  }
  static std::unique_ptr<Forward> forward(int n_threads) {
    auto forward = Forward::create(model(), n_threads);
    EXPECT_TRUE(forward) << forward.error().message;
    return std::move(*forward);
  }
  static std::vector<TokenId> tokens(int n) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < n; ++i) tokens.push_back((i * 37 + 5) % model().hparams().n_vocab);
    return tokens;
  }
  // Hidden rows after all layers, in blocks of n_block.
  static std::vector<float> prefill(Forward& forward, int n_block, int last_rows_only,
                                    ReferenceAttention& attention) {
    const int width = model().hparams().n_embd;
    std::vector<float> hidden(std::size_t(kRows) * width);
    const std::vector<TokenId> prompt = tokens(kRows);
    for (int at = 0; at < kRows; at += n_block) {
      float* block = &hidden[std::size_t(at) * width];
      EXPECT_TRUE(forward.embed(std::span(prompt).subspan(at, n_block), block));
      for (int layer = 0; layer < model().hparams().n_layers; ++layer) {
        const bool last = layer + 1 == model().hparams().n_layers;
        EXPECT_TRUE(forward.layer(layer, block, n_block, attention, last ? last_rows_only : 0));
      }
      attention.advance(n_block);
    }
    return hidden;
  }
  static ReferenceAttention attention() { return {model().hparams(), 64}; }
};

void expect_close(std::span<const float> a, std::span<const float> b) {
  ASSERT_EQ(a.size(), b.size());
  // ggml sums in another order for other shapes; activations are of size 1 to 10.
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-4) << i;
}

TEST_F(ForwardTest, BlocksOfAnySizeGiveTheSameRows) {
  auto f = forward(1);
  auto whole = attention();
  const std::vector<float> expected = prefill(*f, kRows, 0, whole);
  for (int n_block : {1, 3, 4, 6}) {
    auto parts = attention();
    expect_close(prefill(*f, n_block, 0, parts), expected);
  }
}

TEST_F(ForwardTest, LastRowsOnlyLeavesTheOthersAlone) {
  auto f = forward(1);
  const std::size_t width = model().hparams().n_embd;
  auto a = attention();
  auto b = attention();
  const std::vector<float> all = prefill(*f, kRows, 0, a);
  const std::vector<float> last = prefill(*f, kRows, 2, b);
  const auto tail = [&](const std::vector<float>& rows) { return std::span(rows).last(2 * width); };
  expect_close(tail(last), tail(all));
  EXPECT_NE(last[0], all[0]);  // the input of the last layer is still there
}

TEST_F(ForwardTest, DecodeContinuesAPrompt) {
  auto f = forward(1);
  const int n_vocab = model().hparams().n_vocab;
  auto by_block = attention();
  const std::vector<float> hidden = prefill(*f, kRows, 0, by_block);
  std::vector<float> expected(n_vocab);
  ASSERT_TRUE(f->head(&hidden[std::size_t(kRows - 1) * model().hparams().n_embd], expected.data()));
  auto by_token = attention();
  std::vector<float> logits(n_vocab);
  for (TokenId token : tokens(kRows)) {
    ASSERT_TRUE(f->decode(token, by_token, logits.data()));
    by_token.advance(1);
  }
  expect_close(logits, expected);
}

TEST_F(ForwardTest, EveryCallMayUseAnotherAttention) {
  auto f = forward(1);
  const int n_vocab = model().hparams().n_vocab;
  auto a = attention();
  auto b = attention();
  std::vector<float> first(n_vocab), other(n_vocab), again(n_vocab);
  ASSERT_TRUE(f->decode(5, a, first.data()));
  a.advance(1);
  ASSERT_TRUE(f->decode(9, a, other.data()));
  ASSERT_TRUE(f->decode(5, b, again.data()));
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST_F(ForwardTest, ThreadsDoNotChangeAnyBit) {
  auto one = forward(1);
  auto three = forward(3);
  auto a = attention();
  auto b = attention();
  EXPECT_EQ(prefill(*one, kRows, 0, a), prefill(*three, kRows, 0, b));
  std::vector<float> x(model().hparams().n_vocab), y(x.size());
  ASSERT_TRUE(one->decode(7, a, x.data()));
  ASSERT_TRUE(three->decode(7, b, y.data()));
  EXPECT_EQ(x, y);
}

// Keeps nothing and attends to nothing: costs and allocates nothing itself.
class NoAttention final : public Attention {
 public:
  explicit NoAttention(int width) : width_(width) {}
  void prepare(int, const QkvBlock&, int, int) noexcept override {}
  void attend(int, float* out, int ith, int) noexcept override {
    if (ith == 0) std::fill(out, out + width_, 0.5F);
  }

 private:
  int width_;
};

TEST_F(ForwardTest, DecodeDoesNotAllocateAfterTheFirstCall) {
  auto f = forward(2);
  const HParams& h = model().hparams();
  NoAttention none(h.n_heads * h.head_dim);
  std::vector<float> logits(h.n_vocab);
  ASSERT_TRUE(f->decode(1, none, logits.data()));
  const long before = allocations;
  const std::size_t workspace = f->workspace_bytes();
  for (TokenId token = 2; token < 10; ++token) ASSERT_TRUE(f->decode(token, none, logits.data()));
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(f->workspace_bytes(), workspace);
  EXPECT_GT(workspace, 0U);
}

TEST_F(ForwardTest, SeveralTokensGiveEachTheRowItHasAlone) {
  auto f = forward(2);
  const HParams& h = model().hparams();
  const std::size_t n_vocab = static_cast<std::size_t>(h.n_vocab);
  const std::vector<TokenId> all = tokens(5);
  EXPECT_EQ(f->weight_bytes(), 0U);
  for (const int n : {1, 5, 2, 5}) {
    NoAttention none(n * h.n_heads * h.head_dim);
    std::vector<float> logits(n * n_vocab), alone(n_vocab);
    ASSERT_TRUE(f->decode(std::span(all).first(n), none, logits.data()));
    NoAttention one(h.n_heads * h.head_dim);
    for (int i = 0; i < n; ++i) {
      ASSERT_TRUE(f->decode(all[i], one, alone.data()));
      expect_close(std::span(logits).subspan(i * n_vocab, n_vocab), alone);
    }
    // Whatever the number of rows, the weights are read once: all but the embeddings, which are the
    // output's too.
    EXPECT_EQ(f->weight_bytes(), static_cast<std::size_t>(h.weight_bytes));
    const long before = allocations;
    ASSERT_TRUE(f->decode(std::span(all).first(n), none, logits.data()));
    EXPECT_EQ(allocations, before);
  }
}

TEST_F(ForwardTest, CallsWorkOnEveryThread) {
  auto f = forward(3);
  std::array<std::atomic<int>, 3> calls{};
  const auto work = [](void* data, int ith, int nth) noexcept {
    EXPECT_EQ(nth, 3);
    ++(*static_cast<std::array<std::atomic<int>, 3>*>(data))[static_cast<std::size_t>(ith)];
  };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(f->on_all_threads(work, &calls));
  for (const auto& n : calls) EXPECT_EQ(n, 2);
}

TEST_F(ForwardTest, RefusesTokensOutsideTheVocabulary) {
  auto f = forward(1);
  auto a = attention();
  std::vector<float> out(model().hparams().n_vocab);
  for (TokenId token : {-1, model().hparams().n_vocab}) {
    const Status embedded = f->embed({&token, 1}, out.data());
    ASSERT_FALSE(embedded);
    EXPECT_NE(embedded.error().message.find(std::to_string(token)), std::string::npos);
    EXPECT_FALSE(f->decode(token, a, out.data()));
  }
}

TEST_F(ForwardTest, RefusesImpossibleThreadCounts) {
  for (int n : {0, -1, 100000}) EXPECT_FALSE(Forward::create(model(), n));
}

TEST(Backend, NamesItsVersions) {
  EXPECT_NE(backend_version().find("ggml"), std::string::npos);
  EXPECT_FALSE(backend_cpu_features().empty());
}

}  // namespace
}  // namespace qevict
