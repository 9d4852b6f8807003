// A prompt computed once through the full path: what any policy needs to compress it.
//
// Memory, in bytes a layer and token: 4 H D for fp16 K and V, 8 a query head for the column sums of
// the mass, and 4 a query head for value norms once a policy has asked for them; besides, a layer
// keeps its last queries and moments. (Qwen2.5-Coder-0.5B: 15 KiB a token of all layers.)
// Thread safety: immutable, except that value norms are added when they are first asked for: use
// it on the engine's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/prompt_pass.h"

namespace qevict {

// What a scorer or a selector reads, in the terms of a capture. ladder: the policy has one, and so
// many sinks.
CaptureOptions needs_of(const Needs& needs, const SelectorNeeds& select, bool ladder, int n_sink);

class PromptSnapshot {
 public:
  int n_tokens() const { return n_tokens_; }
  // After the last token: [n_vocab].
  std::span<const float> logits() const { return logits_; }
  std::size_t bytes() const;

 private:
  friend class SnapshotReader;
  friend Result<std::shared_ptr<const PromptSnapshot>> capture_prompt(const SessionContext&,
                                                                      std::span<const TokenId>,
                                                                      const CaptureOptions&);
  struct Layer {
    std::vector<fp16_t> k, v;               // [H][n][D], post-RoPE
    std::vector<std::vector<double>> mass;  // [n_heads][n]: column sums
    std::vector<float> q_last;              // [n_heads][n_last][D]
    std::vector<float> q_probe;             // [probes][n_heads][D]
    std::vector<double> mean, covariance;   // of the queries before RoPE
    std::int64_t n_queries = 0;
    std::vector<float> extremes;                          // PromptRows::extremes, or empty
    mutable std::vector<std::vector<float>> value_norms;  // [n_heads][n], or empty
  };

  // Copies one layer, as the attention left it.
  void keep(const PromptRows& rows, const PromptQueries& queries, const Geometry& geometry);

  const Model* model_ = nullptr;
  CaptureOptions options_;
  int n_tokens_ = 0, n_last_ = 0;
  std::vector<int> probes_;  // rows whose queries a quantiser wants, ascending
  std::vector<Layer> layers_;
  std::vector<float> logits_;
};

Result<std::shared_ptr<const PromptSnapshot>> capture_prompt(const SessionContext& context,
                                                             std::span<const TokenId> tokens,
                                                             const CaptureOptions& options);

// Hands a snapshot's layers to a cache, in the form that its policy reads.
class SnapshotReader {
 public:
  SnapshotReader(const PromptSnapshot& prompt, const KvCache& cache);
  // What the cache's policy reads and the snapshot does not have, or another model's snapshot.
  Status check(const Model& model);
  struct LayerInput {
    PromptRows rows;
    std::span<const PromptMass> mass;
    PromptQueries queries;
  };
  // After check(). Valid until the next call. Errors: those of `norms`.
  Result<LayerInput> layer(int layer, const ValueNorms& norms);

 private:
  void fill_last_queries(const PromptSnapshot::Layer& from);
  bool find_probes();
  void fill_probes(const PromptSnapshot::Layer& from);
  // Column sums of one query head over the last `counted` rows; 0: over all.
  void head_mass(const PromptSnapshot::Layer& from, int head, int counted,
                 std::vector<double>& sums) const;
  void fill_unit_mass(const PromptSnapshot::Layer& from);
  void add_head_sums(const PromptSnapshot::Layer& from, int head, int at,
                     std::vector<double>& records);
  Status fill_value_norms(const PromptSnapshot::Layer& from, int layer, const ValueNorms& norms);

  const PromptSnapshot& prompt_;
  const KvCache& cache_;
  std::vector<std::vector<double>> unit_mass_;  // [units][windows]
  std::vector<double> sums_, recent_sums_;
  std::vector<PromptMass> unit_views_;
  std::vector<float> q_last_;    // as many as the policy asks for
  std::vector<int> probe_rows_;  // what a codec asks for
  std::vector<float> q_probe_;
  std::vector<std::span<const double>> mass_views_;
  std::vector<std::span<const float>> norm_views_;
};

}  // namespace qevict
