// Sinks and the local zone of one layer: fp16, token-lane, one fixed allocation.
//
//   [ sinks: positions 0..S-1 ][ local: positions local_begin.. ][ free rows ]
//
// n_local_tokens() grows by one a decode step; a routing event drops whole windows from the front.
// Capacity covers the largest local zone between two events; rows not in use are reported as
// reserved.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "kv/types.h"

namespace qevict {

class RecentStore {
 public:
  RecentStore() = default;
  // Room for n_sink + max_local tokens, at most `most_tokens`, rounded up to 16 rows.
  RecentStore(const Geometry& geometry, int n_sink, int max_local,
              std::int64_t most_tokens = std::numeric_limits<int>::max());

  int n_sinks() const { return n_sinks_; }  // present, <= n_sink
  int n_local_tokens() const { return n_tokens_ - n_sinks_; }
  int n_tokens() const { return n_tokens_; }
  int max_tokens() const { return max_tokens_; }
  RecentRef ref() const { return {k_.data(), v_.data(), capacity_, n_tokens_}; }
  std::size_t sink_bytes() const { return token_bytes_ * n_sinks_; }
  std::size_t local_bytes() const { return token_bytes_ * n_local_tokens(); }
  std::size_t reserved_bytes() const;  // allocated beyond the tokens present

  // Adds a row and returns its index; it becomes a sink while fewer than n_sink tokens exist.
  int push_row();
  // Writes one KV head of a row, rounding to fp16. Distinct (row, head) pairs may run in parallel.
  void write(int row, int kv_head, const float* k, const float* v);         // [D] each
  void write_fp16(int row, int kv_head, const fp16_t* k, const fp16_t* v);  // [D] each
  void read(int row, int kv_head, fp16_t* k, fp16_t* v) const;              // [D] each
  // Drops the n oldest local tokens.
  void drop_local(int n);
  void clear();

 private:
  Geometry geometry_;
  int n_sink_ = 0, n_sinks_ = 0, n_tokens_ = 0, max_tokens_ = 0, capacity_ = 0;
  std::size_t token_bytes_ = 0;
  std::vector<fp16_t> k_;  // [H][D][capacity]
  std::vector<fp16_t> v_;  // [H][capacity][D]
};

}  // namespace qevict
