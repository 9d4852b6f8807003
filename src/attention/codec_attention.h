// Decode steps over a cache whose layers are row codecs (kv/row_codec.h), and what such a cache
// needs of a prompt.
//
// A step's items are chunks of rows of one KV head: a thread dequantises them into its scratch and
// runs the kernel of the recent tokens on them. Partial states are merged in the order of the
// chunks, so that results have the same bits for any number of threads.
// Thread safety: attend_step() and keep_probes() by all threads of one pool; the rest by the owner.
#pragma once

#include <atomic>
#include <vector>

#include "attention/aligned_buffer.h"
#include "kernels/kernels.h"
#include "kv/kv_cache.h"

namespace qevict {

class CodecAttention {
 public:
  CodecAttention(KvCache& cache, const KernelTable& kernels, int n_threads);

  // Rows that the cache holds before a prompt, and its queries that the codecs want kept.
  void begin_prompt(int n_new);
  int n_prefix_rows() const { return n_prefix_; }
  // Dequantises a layer's rows to k, v [H][capacity][D].
  void load_prefix(int layer, int capacity, fp16_t* k, fp16_t* v);
  // q [n_heads][D] of new token t, post-RoPE, not scaled.
  void keep_probes(int t, const float* q) noexcept;
  ProbeRows probes() const { return {probe_rows_, probe_q_.data()}; }
  void end_prompt();

  // Scratch for the token that follows; before KvCache::begin_step().
  void begin_step();
  // q [n_heads][D], scaled; out [n_heads * D].
  void attend_step(int layer, const float* q, float* out, int ith, std::atomic<int>& claimed,
                   std::atomic<int>& finished) noexcept;

  std::size_t workspace_bytes() const;

 private:
  void run_item(const RowCodec& codec, int item, const float* q, bool mass, int ith) noexcept;
  void finish_step(RowCodec& codec, int n_chunks, bool mass, float* out) noexcept;
  ChunkRows scratch_of(int thread) const;

  KvCache& cache_;
  const KernelTable& kernels_;
  const Geometry geometry_;
  int n_threads_;

  int n_prefix_ = 0;
  std::vector<int> probe_rows_;
  std::vector<std::vector<int>> probes_of_;  // [new tokens]: indexes into probe_rows_
  AlignedBuffer<float> probe_q_;             // [probes][n_heads][D]

  AlignedBuffer<fp16_t> chunks_;  // [threads][K, V][chunk][D]
  AlignedBuffer<float> partial_o_, partial_m_,
      partial_l_;                   // [chunks][n_heads][D], [chunks][n_heads]
  AlignedBuffer<float> token_sum_;  // [chunks][n_heads][chunk]; where a codec uses mass
  AlignedBuffer<float> token_max_;  // [chunks][n_heads]
  AlignedBuffer<float> mass_;       // [H][rows]
};

}  // namespace qevict
