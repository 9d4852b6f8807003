// One layer's K and V for a policy that quantises tokens and evicts none: real codes, grids,
// outliers and the fp16 rows that are not quantised (yet), each at its size.
//
// Every token has one row a KV head. Rows are read in an order of the codec's own: softmax does not
// care, and whoever needs positions is the codec. All rows are accessible.
//
// One prompt: append_prompt(). One step: reserve_row -> push_row -> write() for every KV head ->
// attention (load) -> add_mass() if wanted -> end_step().
// Thread safety: one writer; write() may run for distinct heads at once, load() from any thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/fp16.h"
#include "kernels/geometry.h"
#include "kernels/rope.h"
#include "kv/types.h"

namespace qevict {

// Rows that attention reads at a time: they are dequantised into a thread's scratch. A multiple of
// 16 (RecentRef).
inline constexpr int kCodecChunk = 256;

// What all codecs are made of; the pointers outlive the codec.
struct CodecContext {
  Geometry geometry;
  const RopeSpec* rope = nullptr;
  // Angles of every position of the context: row w of the table is position w.
  const WindowPhases* angles = nullptr;
};

// Where load() leaves rows, as attend_recent() reads them: k [D][capacity], v [capacity][D].
struct ChunkRows {
  fp16_t* k = nullptr;
  fp16_t* v = nullptr;
  int capacity = 0;
};

// A layer's rows once a prompt is read: first the rows that the codec held (dequantised, in its
// order), then the new ones in the order of their positions.
struct CodecRows {
  const fp16_t* k = nullptr;  // [H][capacity][D], post-RoPE
  const fp16_t* v = nullptr;  // [H][capacity][D]
  int capacity = 0;
  int n_rows = 0;
};

// Queries of some of a prompt's new tokens.
struct ProbeRows {
  std::span<const int> rows;  // among the new tokens, from 0; may repeat
  const float* q = nullptr;   // [rows.size()][n_heads][D], post-RoPE, not scaled
};

class RowCodec {
 public:
  virtual ~RowCodec() = default;
  virtual std::unique_ptr<RowCodec> clone() const = 0;

  int n_tokens() const { return n_tokens_; }
  virtual TierBytes bytes() const = 0;
  virtual MetadataBytes metadata() const { return {}; }
  virtual std::size_t reserved_bytes() const = 0;  // allocated and not in use

  // Rows first .. first + n - 1 of one KV head.
  virtual void load(int kv_head, int first, int n, const ChunkRows& out) const noexcept = 0;

  // The new tokens of a prompt of n_new whose queries append_prompt() wants.
  virtual std::vector<int> probe_rows(int n_new) const { return {}; }
  virtual void append_prompt(const CodecRows& rows, const ProbeRows& probes) = 0;

  // Makes room for one row more, then adds it without allocating: write() fills it, it is the last.
  virtual void reserve_row() {}
  virtual void push_row() noexcept = 0;
  virtual void write(int kv_head, const float* k, const float* v) noexcept = 0;  // [D], post-RoPE
  // Whether attention is ever wanted, and whether that of the step since push_row() is: add_mass()
  // then gets, for [H][n_tokens()] rows, the probabilities summed over each KV head's query heads.
  virtual bool uses_mass() const { return false; }
  virtual bool wants_mass() const { return false; }
  virtual void add_mass(const float* mass) noexcept {}
  virtual void end_step() = 0;

 protected:
  RowCodec() = default;
  RowCodec(const RowCodec&) = default;

  int n_tokens_ = 0;
};

}  // namespace qevict
