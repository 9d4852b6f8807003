#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>

#include "engine/batch.h"
#include "engine/cpu_count.h"
#include "engine/prompt_snapshot.h"
#include "engine/session.h"
#include "model/output_norms.h"
#include "policies/registry.h"

namespace qevict {
namespace {

class EngineImpl final : public Engine {
 public:
  EngineImpl(std::unique_ptr<Model> model, std::unique_ptr<Forward> forward,
             const EngineOptions& options, double load_ms)
      : model_(std::move(model)), forward_(std::move(forward)), load_ms_(load_ms) {
    context_ = {model_.get(), forward_.get(), options.batch_size,
                options.ctx_size > 0 ? options.ctx_size : model_->hparams().n_ctx_train};
  }

  const Model& model() const override { return *model_; }
  int ctx_size() const override { return context_.ctx_size; }
  int n_threads() const override { return forward_->n_threads(); }
  double load_ms() const override { return load_ms_; }
  std::unique_ptr<Batch> create_batch() override { return std::make_unique<BatchImpl>(context_); }
  std::int64_t step_weight_bytes() const override {
    return static_cast<std::int64_t>(forward_->weight_bytes());
  }

  Result<std::shared_ptr<const PromptSnapshot>> capture_prompt(
      std::span<const TokenId> tokens, const CaptureOptions& options) override {
    return qevict::capture_prompt(context_, tokens, options);
  }

  Result<std::unique_ptr<Session>> create_session(const CacheConfig& wanted) override {
    const Result<const PolicySpec*> policy = require_policy(wanted);
    if (!policy) return std::unexpected(policy.error());
    CacheConfig config = wanted;
    configure_policy(**policy, config);
    const HParams& hp = model_->hparams();
    auto cache = KvCache::create(make_geometry(hp, config), hp.n_layers, hp.rope, config, **policy);
    if (!cache) return std::unexpected(cache.error());
    if ((*cache)->selector_needs().value_norms) {
      if (Status s = load_norms(); !s) return std::unexpected(s.error());
      (*cache)->set_value_norms(
          [norms = norms_](int layer, int head, const float* v, int n, float* out) {
            return norms->compute(layer, head, v, n, out);
          });
    }
    return std::make_unique<SessionImpl>(context_, std::move(*cache));
  }

 private:
  // The output projections, for the first policy that weighs values by them.
  Status load_norms() {
    if (norms_) return {};
    auto norms = OutputNorms::create(*model_);
    if (!norms) return std::unexpected(norms.error());
    norms_ = std::move(*norms);
    return {};
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Forward> forward_;
  SessionContext context_;
  std::shared_ptr<OutputNorms> norms_;
  double load_ms_;
};

}  // namespace

Geometry make_geometry(const HParams& hparams, const CacheConfig& config) {
  Geometry g;
  g.n_heads = hparams.n_heads;
  g.n_kv_heads = hparams.n_kv_heads;
  g.head_dim = hparams.head_dim;
  g.window = config.window;
  g.quant_bits = config.quant_bits;
  g.pairing = hparams.rope.pairing;
  return g;
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  if (const std::string isa = isa_error(); !isa.empty()) return bad_input(isa);
  if (options.batch_size < 1) {
    return bad_input(
        fmt::format("batch size is {} (--batch-size): give at least 1", options.batch_size));
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    auto model = Model::load(options.model_path, {options.repack, options.rewrite, true,
                                                  options.load_progress, options.cancel});
    if (!model) return std::unexpected(model.error());
    const HParams& hp = (*model)->hparams();
    if (options.ctx_size > hp.n_ctx_train) {
      return bad_input(fmt::format("context {} is above the model's {} (--ctx-size): lower it",
                                   options.ctx_size, hp.n_ctx_train));
    }
    const int n_threads =
        options.n_threads > 0 ? std::min(options.n_threads, usable_cpus()) : default_threads();
    auto forward = Forward::create(**model, n_threads);
    if (!forward) return std::unexpected(forward.error());
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return std::make_unique<EngineImpl>(std::move(*model), std::move(*forward), options, ms);
  } catch (const std::bad_alloc&) {
    return runtime_error(
        fmt::format("out of memory (loading {}): use a smaller model", options.model_path));
  }
}

}  // namespace qevict
