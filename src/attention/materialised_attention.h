// Attention as the paper's reference computes it, for comparison with the fused kernels.
//
// Decode, per layer and step: every accessible window is brought back as fp16 rows (Quantized ones
// are dequantised and rotated), the cache is rebuilt in position order as one dense K and V
//
//   [ sinks ][ windows of both tiers, by position ][ local ]      [H][n_rows][D]
//
// then each of these passes reads and writes memory: scores of all heads [n_heads][n_rows], softmax
// of the rows, P V, column sums (the attention mass). In a prompt the scores [block][n_keys] of a
// query head are written out, too. The results are the fused ones up to rounding: dequantised keys
// and values are rounded to fp16 on their way.
//
// A part of TieredAttention, which owns it, calls it from its own entry points and states the rules
// about threads and bits. Work is cut into items that depend on the cache alone; the items of a
// phase start when the phase before is finished.
#pragma once

#include <atomic>
#include <vector>

#include "attention/aligned_buffer.h"
#include "kernels/kernels.h"
#include "kv/kv_cache.h"

namespace qevict {

class MaterialisedAttention {
 public:
  MaterialisedAttention(KvCache& cache, const KernelTable& kernels, int n_threads);

  // What the threads of one call share: claimed and finished items, 0 before the call.
  struct Counters {
    std::atomic<int>& claimed;
    std::atomic<int>& finished;
  };

  // --- decode ---
  void begin_step();
  // By one thread, before any thread attends: decides where each window's rows go.
  void order_windows(int layer) noexcept;
  // q [n_heads][D], post-RoPE and scaled.
  void attend_step(int layer, const float* q, float* out, int ith, Counters counters) noexcept;

  // --- prompt ---
  // A layer's uncompressed rows and what the block's queries are; see TieredAttention.
  struct PromptBlock {
    const float* q = nullptr;  // [n_tokens][n_heads][D], post-RoPE
    int n_tokens = 0;
    const fp16_t* k_rows = nullptr;  // [H][capacity][D]
    const fp16_t* v_rows = nullptr;
    int capacity = 0;
    int n_sink_rows = 0;
    int row0 = 0;       // the row of the block's first token
    int mass_from = 0;  // tokens before this one add no mass
  };
  // Restores the compressed prefix. capacity: rows of the layer; max_block: tokens.
  void begin_layer(int layer, int capacity, int max_block);
  // One of prompt_items() independent parts of a block: a query head.
  void run_prompt_head(const PromptBlock& block, int head, float* out, int ith) noexcept;
  // After the block is attended: adds the heads' sums in their order. full, quantized: by slot;
  // region: by window after the sinks.
  void add_prompt_mass(int layer, const PromptBlock& block, std::vector<double>& full,
                       std::vector<double>& quantized, std::vector<double>& region) noexcept;
  int prompt_items() const { return geometry_.n_heads; }
  void end_prompt();

  std::size_t workspace_bytes() const;

 private:
  // Where one decode call's items begin: [begin[p], begin[p + 1]) are phase p's.
  struct Phases {
    int begin[6];
    int n_rows, n_windows, chunks, full_groups, quantized_groups;
  };
  Phases phases(int layer) const;
  bool accessible(const LayerCache& layer) const;
  int window_tokens(const LayerCache& layer) const;
  void reserve_restore();

  void run_step_item(int layer, const Phases& phases, int phase, int item, const float* q,
                     float* out, int ith) noexcept;
  void rebuild(int layer, const Phases& phases, int item, int ith) noexcept;
  // Rows of one group's windows into the dense K and V [H][stride][D], `first` rows from the start.
  void restore_full(const LayerCache& layer, int group, int first, int stride, int ith) noexcept;
  void restore_quantized(const LayerCache& layer, int group, int first, int stride,
                         int ith) noexcept;
  void score_chunk(const Phases& phases, int item, const float* q, int ith) noexcept;
  void multiply_chunk(const Phases& phases, int item, int ith) noexcept;
  void finish_step(int layer, const Phases& phases, float* out) noexcept;

  // A thread's scratch: a Full window's rows, a group's phases, and the kernel's.
  struct Restore {
    fp16_t *k, *v;  // [H][Omega][D]
    float* phases;  // [D/2][2][kLanes]
    void* scratch;
  };
  Restore restore_scratch(int ith) const;

  KvCache& cache_;
  const KernelTable& kernels_;
  const Geometry geometry_;
  const int n_threads_;
  const bool want_mass_;
  const float power_, decay_;
  std::vector<float> turn_;  // [Omega][2][D/2]: cos, sin of the angles of 0 .. Omega-1

  // Rank of each slot's window among the accessible ones by position, and the scratch to find it.
  std::vector<std::int32_t> full_rank_, quantized_rank_, by_window_;
  AlignedBuffer<fp16_t> dense_k_, dense_v_;  // [H][rows][D]
  AlignedBuffer<float> scores_;              // decode: [n_heads][stride]; prompt: a matrix a thread
  AlignedBuffer<float> column_sums_;         // decode: [stride]; prompt: [n_heads][stride]
  AlignedBuffer<float> partial_;             // [chunks][n_heads][D]
  AlignedBuffer<std::uint8_t> restore_, products_;  // scratch, a part a thread
  std::size_t restore_stride_ = 0, products_stride_ = 0;
  std::size_t stride_ = 0;         // floats from one row of scores to the next
  std::size_t thread_scores_ = 0;  // prompt: floats of one thread's matrix
  int prefix_tokens_ = 0;          // prompt: rows of the dense K and V
};

}  // namespace qevict
