#include "engine/engine.h"

#include <sched.h>

#include <chrono>
#include <fmt/format.h>
#include <new>
#include <thread>

#include "engine/session.h"
#include "policies/registry.h"

namespace qevict {
namespace {

// Cores that this process may run on.
int usable_cores() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n > 0 ? static_cast<int>(n) : 1;
}

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

  Result<std::unique_ptr<Session>> create_session(const CacheConfig& config) override {
    const PolicySpec* policy = find_policy(config.policy);
    if (policy == nullptr) {
      std::string known;
      for (const PolicySpec& p : policies()) known += (known.empty() ? "" : ", ") + p.name;
      return bad_input(fmt::format("unknown policy \"{}\" (--policy): use one of {}", config.policy, known));
    }
    const HParams& hp = model_->hparams();
    Geometry g;
    g.n_heads = hp.n_heads;
    g.n_kv_heads = hp.n_kv_heads;
    g.head_dim = hp.head_dim;
    g.window = config.window;
    g.quant_bits = config.quant_bits;
    g.pairing = hp.rope.pairing;
    auto cache = KvCache::create(g, hp.n_layers, hp.rope, config, *policy);
    if (!cache) return std::unexpected(cache.error());
    return std::make_unique<SessionImpl>(context_, std::move(*cache));
  }

 private:
  std::unique_ptr<Model> model_;
  std::unique_ptr<Forward> forward_;
  SessionContext context_;
  double load_ms_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  if (const std::string isa = isa_error(); !isa.empty()) return bad_input(isa);
  if (options.batch_size < 1) {
    return bad_input(fmt::format("batch size is {} (--batch-size): give at least 1", options.batch_size));
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    auto model = Model::load(options.model_path,
                             {options.repack, true, options.load_progress, options.cancel});
    if (!model) return std::unexpected(model.error());
    const HParams& hp = (*model)->hparams();
    if (options.ctx_size > hp.n_ctx_train) {
      return bad_input(fmt::format("context {} is above the model's {} (--ctx-size): lower it",
                                   options.ctx_size, hp.n_ctx_train));
    }
    auto forward = Forward::create(**model, options.n_threads > 0 ? options.n_threads : usable_cores());
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
