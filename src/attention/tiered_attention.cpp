#include "attention/tiered_attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace qevict {

TieredAttention::TieredAttention(KvCache& cache, const KernelTable& kernels, int n_threads)
    : cache_(cache),
      kernels_(kernels),
      geometry_(cache.geometry()),
      unit_geometry_(cache.unit_geometry()),
      n_threads_(n_threads),
      scale_(1.0F / std::sqrt(static_cast<float>(geometry_.head_dim))),
      want_mass_(cache.needs().mass || cache.needs().head_sums),
      want_heads_(cache.needs().head_sums),
      power_(static_cast<float>(cache.selector_needs().mass ? cache.selector_needs().mass_power
                                                            : cache.needs().mass_power)),
      decay_(static_cast<float>(cache.needs().mass_decay)),
      mass_rows_(cache.needs().prompt_rows),
      select_needs_(cache.selector_needs()),
      progress_(std::make_unique<Progress[]>(static_cast<std::size_t>(cache.n_layers()))),
      unit_prompt_(static_cast<std::size_t>(cache.units_per_layer())) {
  const int pairs = geometry_.head_dim / 2;
  back_cos_.resize(static_cast<std::size_t>(geometry_.window) * pairs);
  back_sin_.resize(back_cos_.size());
  for (int j = 0; j < geometry_.window; ++j) {
    rope_angles(cache.rope(), j, &back_cos_[static_cast<std::size_t>(j) * pairs],
                &back_sin_[static_cast<std::size_t>(j) * pairs]);
  }
  step_cos_.resize(pairs);
  step_sin_.resize(pairs);
  if (want_heads_) mass_parts_ = 2;
  if (cache.ladder() || select_needs_.key_range) {
    range_from_ = cache.ladder() ? cache.config().n_sink : select_needs_.range_from;
    extremes_.resize(static_cast<std::size_t>(n_threads) * geometry_.n_kv_heads *
                     head_extreme_floats(geometry_));
  }
  if (!cache.config().fused_attention) {
    materialised_ = std::make_unique<MaterialisedAttention>(cache, kernels, n_threads);
  }
  if (cache.codec(0) != nullptr) {
    codec_ = std::make_unique<CodecAttention>(cache, kernels, n_threads);
  }
}

void TieredAttention::prepare(int layer, const QkvBlock& qkv, int ith, int nth) noexcept {
  const auto start = std::chrono::steady_clock::now();
  if (in_prompt_) {
    prepare_prompt(layer, qkv, ith, nth);
  } else {
    prepare_step(layer, qkv, ith, nth);
    if (materialised_ && !codec_ && ith == 0) materialised_->order_windows(layer);
  }
  if (ith == 0) {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

void TieredAttention::attend(int layer, float* out, int ith, int nth) noexcept {
  const auto start = std::chrono::steady_clock::now();
  QE_DCHECK(nth <= n_threads_);
  if (in_prompt_) {
    attend_prompt(layer, out, ith);
  } else if (codec_) {
    codec_->attend_step(layer, q_.data(), out, ith, progress_[layer].claimed,
                        progress_[layer].finished);
  } else if (materialised_) {
    materialised_->attend_step(layer, q_.data(), out, ith,
                               {progress_[layer].claimed, progress_[layer].finished});
  } else {
    attend_step(layer, out, ith);
  }
  if (ith == 0) {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

double TieredAttention::take_seconds() {
  const double seconds = seconds_;
  seconds_ = 0.0;
  return seconds;
}

bool TieredAttention::uses_quantized(const LayerCache& layer) const {
  if (materialised_) return false;  // it reads the tier itself, as rows
  return cache_.config().quantized_accessible && layer.n_quantized() > 0;
}

std::size_t TieredAttention::workspace_bytes() const {
  const std::size_t materialised = materialised_ ? materialised_->workspace_bytes() : 0;
  const std::size_t codec = codec_ ? codec_->workspace_bytes() : 0;
  return codec + materialised + q_.bytes() + thread_scratch_.bytes() + k_rows_.bytes() +
         v_rows_.bytes() + prefix_phases_.bytes() + item_mass_.bytes() + q_back_.bytes() +
         partial_o_.bytes() + partial_m_.bytes() + partial_l_.bytes() + window_sum_.bytes() +
         group_max_.bytes() + token_sum_.bytes() +
         (cos_.capacity() + sin_.capacity()) * sizeof(float);
}

void TieredAttention::note_peak() {
  workspace_peak_ = std::max(workspace_peak_, workspace_bytes());
}

}  // namespace qevict
