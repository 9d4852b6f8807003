// A batch in which a sequence's bits do not depend on how many others there are.
//
// ggml multiplies weights with several rows at a time; how many rows there are, and whether one is
// left over, decides in which order it adds. Behind quantised weights a last bit can move a rounded
// activation by a whole step: 1e-3 nats were seen between two equal caches. That must not decide
// which of two caches is better, so idle sequences fill the batch up to where the order is always
// the same.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace qevict {

class UniformBatch {
 public:
  explicit UniformBatch(Engine& engine) : engine_(engine), batch_(engine.create_batch()) {}

  // As Batch::decode(). Errors: no idle sequence could be made.
  Result<std::span<const Result<std::span<const float>>>> decode(
      std::span<const BatchInput> inputs);

 private:
  Status add_idle(std::size_t index);

  Engine& engine_;
  std::unique_ptr<Batch> batch_;
  std::vector<std::unique_ptr<Session>> idle_;
  std::vector<BatchInput> inputs_;
};

}  // namespace qevict
