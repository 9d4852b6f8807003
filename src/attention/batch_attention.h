// Attention of many sequences in one graph: row i of every block is one token of sequence i, which
// attends to that sequence's own cache.
//
// The sequences are ragged: each brings as many work items as its cache is long. In attend() every
// thread walks over all of them and claims what is left (TieredAttention), so that the load is
// shared without a barrier between sequences. A sequence's results have the bits of that sequence
// alone. Thread safety: as Attention.
#pragma once

#include <span>
#include <vector>

#include "attention/tiered_attention.h"

namespace qevict {

class BatchAttention final : public Attention {
 public:
  // The sequences of the next steps, in the order of the rows; they must live until the next call,
  // be distinct and have the same numbers of heads and head_dim. Allocates when there are more than
  // ever before.
  void set_sequences(std::span<TieredAttention* const> sequences);

  // qkv.n_tokens must be the number of sequences, each between its begin_step() and
  // KvCache::end_step().
  void prepare(int layer, const QkvBlock& qkv, int ith, int nth) noexcept override;
  void attend(int layer, float* out, int ith, int nth) noexcept override;

  // Seconds that the first thread spent in prepare and attend since the last call.
  double take_seconds();

 private:
  std::vector<TieredAttention*> sequences_;
  std::ptrdiff_t q_width_ = 0, kv_width_ = 0;  // floats of a row of q (and out), of k and v
  double seconds_ = 0.0;
};

}  // namespace qevict
