// One step of many sessions in one graph.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "attention/batch_attention.h"
#include "engine/session.h"

namespace qevict {

class BatchImpl final : public Batch {
 public:
  explicit BatchImpl(SessionContext context) : context_(context) {}

  std::span<const Result<std::span<const float>>> decode(
      std::span<const BatchInput> inputs) override;
  double attention_seconds() override { return attention_.take_seconds(); }
  double routing_seconds() override;

 private:
  using Row = Result<std::span<const float>>;
  Status check(const BatchInput& input) const;
  // Chooses the inputs that take part and makes room for all of them; the others have an error.
  void admit(std::span<const BatchInput> inputs);
  // Everything that needs memory before a cache is touched.
  Status reserve();
  void fail_all(const Error& error);
  // Checks and routes the sequences, shared out over the threads.
  Status finish();
  void finish_row(std::size_t row);

  SessionContext context_;
  BatchAttention attention_;
  std::vector<Row> results_;  // one an input
  // Of the step in progress, row by row: whose it is, its index in the inputs.
  std::vector<SessionImpl*> sessions_;
  std::vector<TieredAttention*> attentions_;
  std::vector<TokenId> tokens_;
  std::vector<std::size_t> index_;
  std::vector<float> logits_;            // [rows][n_vocab]
  std::atomic<std::size_t> claimed_{0};  // rows that finish() has given to a thread
  double routing_seconds_ = 0.0;
};

}  // namespace qevict
