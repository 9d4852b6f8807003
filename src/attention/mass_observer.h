// Reads attention mass head by head, while the model runs (diagnostics).
//
// The cache sums a window's mass over the query heads; who wants to know what each head looks at
// gives a TieredAttention an observer. Mass is the softmax probability, summed over a window's
// tokens and, in a prompt, over the rows of a block. A ranker with a power sees probability^power.
//
// Thread safety: calls of one layer come one after the other, from any thread.
#pragma once

#include <span>

#include "kv/types.h"

namespace qevict {

class MassObserver {
 public:
  virtual ~MassObserver() = default;
  // Windows of one tier, in any order, each once. `head` is a query head.
  virtual void on_windows(int layer, int head, std::span<const WindowId> ids,
                          std::span<const float> mass) noexcept = 0;
  // mass[i] is that of positions first + i * width .. first + (i + 1) * width - 1: windows that a
  // prompt's rows form, or tokens of the recent zone in a decode step (width 1). A prompt does not
  // report sinks.
  virtual void on_run(int layer, int head, TokenPos first, int width,
                      std::span<const float> mass) noexcept = 0;
};

}  // namespace qevict
