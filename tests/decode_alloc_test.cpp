// No allocation in a decode step: the whole of Session::decode() and Batch::decode(), all threads.
//
// This file replaces the C library's allocation functions in the test program and counts; C++'s
// operator new ends there, too. ggml is inside the count: running a graph makes kGgmlPerRun, and
// that is all. What does allocate, by design, is a routing event: a tier's last group is allocated
// for exactly the windows it holds (decision 0002), and a promoted window's codes move to the
// ledger; in the step after an event the attention's scratch may grow with a cache that still
// grows, by half at a time.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "engine/engine.h"
#include "gguf_writer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QEVICT_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QEVICT_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef QEVICT_COUNTS_ALLOCATIONS
#ifdef __GLIBC__
#define QEVICT_COUNTS_ALLOCATIONS 1
#else
#define QEVICT_COUNTS_ALLOCATIONS 0
#endif
#endif

namespace {
std::atomic<long> g_allocations{0};
}  // namespace

#if QEVICT_COUNTS_ALLOCATIONS
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t n, std::size_t size);
void* __libc_realloc(void* p, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) noexcept {
  ++g_allocations;
  return __libc_malloc(size);
}
void* calloc(std::size_t n, std::size_t size) noexcept {
  ++g_allocations;
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t size) noexcept {
  ++g_allocations;
  return __libc_realloc(p, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  ++g_allocations;
  return __libc_memalign(alignment, size);
}
void* memalign(std::size_t alignment, std::size_t size) noexcept {
  ++g_allocations;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) noexcept {
  ++g_allocations;
  *out = __libc_memalign(alignment, size);
  return *out != nullptr ? 0 : ENOMEM;
}
}
#endif

namespace qevict {
namespace {

constexpr int kWindow = 8;
// ggml_graph_compute() opens by making and freeing an empty context: 40 and 16 bytes.
constexpr long kGgmlPerRun = 2;
constexpr long kGgmlPerBatchStep = 2 * kGgmlPerRun;  // the model, then routing on all threads

class DecodeAllocations : public ::testing::Test {
 protected:
  void SetUp() override {
    if (QEVICT_COUNTS_ALLOCATIONS == 0) GTEST_SKIP() << "the C library's allocator is not glibc's";
    load(1);
  }

  void load(int n_threads) {
    TinyModel model;
    model.arch = "qwen2";
    model.type = "q8_0";  // the path over ggml's repacked or plain quantised products
    const std::string path = temp_model_path("decode_alloc");
    ASSERT_EQ(write_tiny_model(path, model), "");
    EngineOptions options;
    options.model_path = path;
    options.n_threads = n_threads;
    auto engine = Engine::load(options);
    std::filesystem::remove(path);
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    engine_ = std::move(*engine);
  }

  std::unique_ptr<Session> start(const std::string& policy, int n_prompt, bool fused = true) {
    CacheConfig config;
    config.policy = policy;
    config.fused_attention = fused;
    auto session = engine_->create_session(config);
    EXPECT_TRUE(session.has_value());
    std::vector<TokenId> prompt;
    for (int t = 0; t < n_prompt; ++t) prompt.push_back(5 + t * 31 % 200);
    EXPECT_TRUE((*session)->prefill(prompt, 400, {}).has_value());
    return std::move(*session);
  }

  std::unique_ptr<Engine> engine_;
};

TEST_F(DecodeAllocations, CountsAtAll) {
  const long before = g_allocations;
  void* volatile kept = std::malloc(10);  // volatile: not optimised away
  std::free(kept);
  kept = ::operator new(10);
  ::operator delete(kept);
  kept = std::aligned_alloc(64, 64);
  std::free(kept);
  EXPECT_EQ(g_allocations - before, 3);
}

TEST_F(DecodeAllocations, AStepOfASessionMakesNone) {
  const std::pair<const char*, bool> cases[] = {
      {"qevict", true}, {"full", true}, {"qevict", false}};
  for (const auto& [policy, fused] : cases) {
    // The materialised order of windows counts the evicted ones, too.
    const bool fixed_budget = std::string(policy) == "qevict" && fused;
    const auto session = start(policy, 500, fused);
    for (int i = 0; i < 2 * kWindow; ++i) ASSERT_TRUE(session->decode(7 + i).has_value());
    int growths = 0;
    bool after_event = true;
    for (int i = 0; i < 200; ++i) {
      const std::int64_t events = session->cache().counters().events;
      const long before = g_allocations;
      const bool ok = session->decode(5 + i * 17 % 200).has_value();
      const long made = g_allocations - before - kGgmlPerRun;
      ASSERT_TRUE(ok);
      const bool event = session->cache().counters().events > events;
      if (event) {
        // A few a layer: slab groups, ledger entries, the buffer that a window is moved through.
        EXPECT_LE(made, 8 * session->cache().n_layers()) << policy << " step " << i;
      } else if (after_event && !fixed_budget) {
        growths += made > 0;
      } else {
        EXPECT_LE(made, 0) << policy << " step " << i;
      }
      after_event = event;
    }
    EXPECT_LE(growths, 2) << "scratch grows by half, not at every event";
  }
}

// Few steps: threads that other programs interrupt wait for each other for long.
TEST_F(DecodeAllocations, NorDoTheOtherThreads) {
  load(2);
  const auto first = start("qevict", 500), second = start("qevict", 400);
  const auto batch = engine_->create_batch();
  const std::vector<BatchInput> inputs = {{first.get(), 9}, {second.get(), 10}};
  for (int i = 0; i < 2 * kWindow - 1; ++i) {
    const long before = g_allocations;
    const auto rows = batch->decode(inputs);
    const long made = g_allocations - before - kGgmlPerBatchStep;
    ASSERT_TRUE(rows[0].has_value() && rows[1].has_value());
    if (i > kWindow && (i + 1) % kWindow != 0) EXPECT_LE(made, 0) << "step " << i;
  }
}

TEST_F(DecodeAllocations, AStepOfABatchMakesNone) {
  std::vector<std::unique_ptr<Session>> sessions;
  for (const int n_prompt : {40, 300, 501}) sessions.push_back(start("qevict", n_prompt));
  sessions.push_back(start("full", 120));
  const auto batch = engine_->create_batch();
  std::vector<BatchInput> inputs;
  for (const auto& session : sessions) inputs.push_back({session.get(), 9});
  int growths = 0, quiet = 0;
  for (int i = 0; i < 200; ++i) {
    const long before = g_allocations;
    const auto rows = batch->decode(inputs);
    const long made = g_allocations - before - kGgmlPerBatchStep;
    for (const auto& row : rows) ASSERT_TRUE(row.has_value()) << row.error().message;
    if (i % kWindow == 0) {
      growths += made > 0;  // the first step builds the graph
    } else if ((i + 1) % kWindow != 0) {
      EXPECT_LE(made, 0) << "step " << i;
      ++quiet;
    }
  }
  EXPECT_LE(growths, 6);
  EXPECT_EQ(quiet, 150);
}

}  // namespace
}  // namespace qevict
