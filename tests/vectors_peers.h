// Checks of the peer vectors, what published code of other policies computes: one JSON object a
// file
// (`source`, `op`, `params`, `inputs`, `expected`, `tolerance`), one function an op. All throw
// json::exception on malformed files. Every check runs the functions that the policies run.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "kv/prompt_view.h"
#include "vectors_io.h"

namespace qevict::vectors {

using PeerCheck = void (*)(const nlohmann::json& file, Check& check);

// Null when the op is unknown.
PeerCheck find_peer_check(const std::string& op);
// Ops that are not checked: the reason, or empty.
std::string peer_skip_reason(const std::string& op);

// The inputs of one layer as a policy sees them. Names that the file lacks stay empty.
class PeerPrompt {
 public:
  // layer < 0: the tensors have no layer dimension.
  explicit PeerPrompt(const nlohmann::json& file, int layer = -1);
  PeerPrompt(const PeerPrompt&) = delete;

  PromptView view;
  int n_tokens() const { return view.n_tokens; }
  int window() const;  // params.window_size
  // Column sums of the causal attention of all queries `q`, as an engine would count them.
  void count_mass();

 private:
  const nlohmann::json& params_;
  std::vector<float> q_, k_, v_;
  std::vector<TokenPos> positions_;
  std::vector<PromptHead> heads_;
  std::vector<std::vector<float>> norms_;
  std::vector<std::span<const float>> norm_spans_;
  std::vector<std::vector<double>> mass_;
  std::vector<std::span<const double>> mass_spans_;
};

// int(T * (1 - ratio)), at least 1, in double arithmetic.
int peer_n_kept(int n_tokens, double ratio);

// The same numbers of tokens, and no difference but in ambiguous tokens: a list of tokens for each
// head (which then keeps its number of tokens), or of [head, token] for all heads together.
void check_kept(const nlohmann::json& expected, const nlohmann::json& ambiguous,
                const KeptTokens& kept, Check& check);
void check_kept_over_heads(const nlohmann::json& expected, const nlohmann::json& ambiguous,
                           const KeptTokens& kept, Check& check);
// scores_rtol * |expected| + scores_atol, or of another prefix. `skipped`: tokens of a head that
// are left out; may be null.
void check_scores(const nlohmann::json& tensor, const nlohmann::json& tolerance,
                  const std::string& prefix, const HeadScores& scores, Check& check,
                  const nlohmann::json* skipped = nullptr);

// vectors_peers_scores.cpp
void check_n_kept(const nlohmann::json& file, Check& check);
void check_snapkv(const nlohmann::json& file, Check& check);
void check_tova(const nlohmann::json& file, Check& check);
void check_knorm(const nlohmann::json& file, Check& check);
void check_streaming(const nlohmann::json& file, Check& check);
void check_observed_attention(const nlohmann::json& file, Check& check);
void check_expected_attention(const nlohmann::json& file, Check& check);
void check_kvzap(const nlohmann::json& file, Check& check);
void check_factory(const nlohmann::json& file, Check& check);
void check_factory_pyramid(const nlohmann::json& file, Check& check);
void check_factory_stream(const nlohmann::json& file, Check& check);
// vectors_peers_budgets.cpp
void check_pyramid_budgets(const nlohmann::json& file, Check& check);
void check_pyramid(const nlohmann::json& file, Check& check);
void check_adakv(const nlohmann::json& file, Check& check);
void check_adakv_official(const nlohmann::json& file, Check& check);
void check_efficient_adakv(const nlohmann::json& file, Check& check);
void check_critical(const nlohmann::json& file, Check& check);
void check_critical_adakv(const nlohmann::json& file, Check& check);
void check_defensive(const nlohmann::json& file, Check& check);
void check_layer_defensive(const nlohmann::json& file, Check& check);
// vectors_kivi.cpp, vectors_zipcache.cpp, vectors_kvquant.cpp
void check_kivi_key(const nlohmann::json& file, Check& check);
void check_kivi_value(const nlohmann::json& file, Check& check);
void check_kivi_split(const nlohmann::json& file, Check& check);
void check_zipcache_prefill(const nlohmann::json& file, Check& check);
void check_kvquant_key(const nlohmann::json& file, Check& check);
void check_kvquant_value(const nlohmann::json& file, Check& check);

}  // namespace qevict::vectors
