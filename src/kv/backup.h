// What an open prompt of a KvCache keeps until it is committed or taken back (private to kv/).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "kv/kv_cache.h"

namespace qevict {

struct KvCache::Backup {
  int n_new = 0;
  bool empty_before = false;
  BudgetPlan budget;
  int step = 0;
  std::vector<std::optional<LayerCache>> units;  // filled as finish_prompt_layer() overwrites
  std::vector<LayerEvent> events;                // told when the prompt is committed
  // Of policies that select tokens once.
  bool keeps_all = false;          // everything fits: nothing is selected
  std::vector<HeadScores> scores;  // [n_layers], of a policy that waits for all layers
  std::size_t select_bytes = 0;    // the most that a selector's view took
};

}  // namespace qevict
