#include "policies/one_shot.h"

#include <algorithm>

#include "policies/selection.h"

namespace qevict {

void ObservingSelector::select(const PromptView& view, int n_kept, KeptTokens& kept) const {
  if (n_kept <= std::min(obs_window_, view.n_last)) {
    select_newest(view, n_kept, kept);
  } else {
    choose(view, n_kept, kept);
  }
}

void declare_observation(Parameters& p, Observation& what) {
  p.integer("obs_window", what.obs_window, 1, 4096);
  p.odd("kernel", what.kernel, 1, 255);
  p.choice("pooling", what.pooling, {"avg", "max"});
  p.choice("group", what.group, {"mean", "max", "sum"});
}

}  // namespace qevict
