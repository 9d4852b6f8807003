// Makes the PromptView of one layer: rows of its units' Full slabs and of the prompt, as floats, in
// the order of their positions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "kv/prompt_view.h"

namespace qevict {

class PromptViewBuilder {
 public:
  // cache: per head, windows of one token, no sinks. n_tokens: positions with the prompt.
  PromptViewBuilder(const KvCache& cache, int layer, TokenPos n_tokens, const PromptRows& rows,
                    const PromptQueries& queries);
  // Where the needs say so; from `norms`, except for rows whose norms the queries came with.
  Status add_value_norms(const ValueNorms& norms);
  const PromptView& view() const { return view_; }
  std::size_t bytes() const;

 private:
  // One KV head. order[i]: Full slot of the i-th candidate that Full holds; the rows follow.
  struct Head {
    std::vector<SlotId> order;
    std::vector<TokenPos> positions;
    std::vector<float> k, v;  // [n][D]
    std::size_t size() const { return positions.size(); }
  };
  // first_row: of the head in rows.k and rows.v. d: head_dim.
  void read_head(const TierSlab& full, const PromptRows& rows, std::size_t first_row,
                 std::size_t d);
  void add_mass();

  const PromptQueries& queries_;
  int n_rows_;
  std::vector<Head> heads_;
  std::vector<PromptHead> head_views_;
  std::vector<std::vector<double>> mass_;
  std::vector<std::span<const double>> mass_views_;
  std::vector<std::vector<float>> norms_;
  std::vector<std::span<const float>> norm_views_;
  PromptView view_;
};

}  // namespace qevict
