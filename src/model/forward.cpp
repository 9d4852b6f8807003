#include <algorithm>
#include <cstring>
#include <optional>

#include "ggml-cpu.h"
#include "model/graph.h"
#include "model/loaded_model.h"
#include "model/model.h"

namespace qevict {
namespace {

constexpr int kMaxThreads = 256;

struct PoolDeleter {
  void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
};
using Pool = std::unique_ptr<ggml_threadpool, PoolDeleter>;

// A step of n sequences through the whole model: built once, run for every step.
struct DecodeGraph {
  DecodeGraph(int max_nodes, ggml_threadpool* pool, int n_threads)
      : runner(max_nodes, pool, n_threads) {}
  GraphRunner runner;
  int n_tokens = 0;  // 0: not built
  std::vector<SeamCall> calls;
  std::vector<float> hidden;  // [n_tokens][n_embd]: the tokens' embeddings
  ggml_tensor* logits = nullptr;
};

class GgmlForward final : public Forward {
 public:
  GgmlForward(const LoadedModel& model, Pool pool, int n_threads)
      : h_(model.hparams()),
        weights_(model.weights()),
        n_threads_(n_threads),
        pool_(std::move(pool)),
        block_(kNodesPerLayer, pool_.get(), n_threads),
        head_(kNodesOfHead, pool_.get(), n_threads) {}

  Status embed(std::span<const std::int32_t> tokens, float* hidden) override;
  Status layer(int layer, float* hidden, int n_tokens, Attention& attention,
               int last_rows_only) override;
  Status head(const float* hidden_row, float* logits) override;
  Status plan_decode(int n_tokens) override;
  Status decode(std::span<const std::int32_t> tokens, Attention& attention, float* logits) override;
  Status on_all_threads(Work work, void* data) override;
  void release_prompt_workspace() override { block_.release(); }
  int n_threads() const override { return n_threads_; }
  std::size_t workspace_bytes() const override {
    std::size_t bytes = block_.workspace_bytes() + head_.workspace_bytes();
    for (const auto* graph : {&one_, &many_}) {
      if (!*graph) continue;
      bytes += (*graph)->runner.workspace_bytes() + (*graph)->hidden.capacity() * sizeof(float);
    }
    return bytes;
  }
  std::size_t weight_bytes() const override { return weight_bytes_; }

 private:
  Status build_head(const float* hidden_row, float* logits);
  Status build_decode(DecodeGraph& graph, int n_tokens);
  Status plan_work();

  const HParams& h_;
  const Weights& weights_;
  int n_threads_;
  Pool pool_;
  GraphRunner block_;  // one layer over a block of rows, rebuilt each time
  GraphRunner head_;
  std::optional<DecodeGraph> one_;   // of a single sequence
  std::optional<DecodeGraph> many_;  // of the last batch's number of sequences
  std::size_t weight_bytes_ = 0;
  Attention* attention_ = nullptr;  // of the call in progress
  SeamCall block_call_;
  std::optional<GraphRunner> work_;  // a single node that calls work_call_
  struct WorkCall {
    Work work = nullptr;
    void* data = nullptr;
  } work_call_;
  ggml_tensor* head_input_ = nullptr;
  ggml_tensor* head_logits_ = nullptr;
};

Status GgmlForward::embed(std::span<const std::int32_t> tokens, float* hidden) {
  const ggml_tensor* table = weights_.global().token_embd;
  const ggml_to_float_t to_float = ggml_get_type_traits(table->type)->to_float;
  for (std::int32_t token : tokens) {
    if (token < 0 || token >= h_.n_vocab) {
      return bad_input("token " + std::to_string(token) + " is not in the vocabulary (0 to " +
                       std::to_string(h_.n_vocab - 1) + "): use the model's own tokenizer");
    }
    const char* row = static_cast<const char*>(table->data) + token * table->nb[1];
    if (table->type == GGML_TYPE_F32) {
      std::memcpy(hidden, row, sizeof(float) * static_cast<std::size_t>(h_.n_embd));
    } else {
      to_float(row, hidden, h_.n_embd);
    }
    hidden += h_.n_embd;
  }
  return {};
}

Status GgmlForward::layer(int layer, float* hidden, int n_tokens, Attention& attention,
                          int last_rows_only) {
  QE_CHECK(layer >= 0 && layer < h_.n_layers && n_tokens > 0 && last_rows_only <= n_tokens);
  const int n_rows = last_rows_only > 0 ? last_rows_only : n_tokens;
  attention_ = &attention;
  block_call_ = {&attention_, layer, n_tokens};
  ggml_context* context = block_.begin();
  ggml_tensor* input = external_rows(context, h_.n_embd, n_tokens, hidden);
  ggml_tensor* output = add_layer(context, h_, weights_.layer(layer), input, n_rows, &block_call_);
  // The last operation writes straight over the rows it replaces; nothing reads them any more.
  output->data = hidden + static_cast<std::size_t>(n_tokens - n_rows) * h_.n_embd;
  if (Status status = block_.finish(output); !status) return status;
  return block_.run();
}

Status GgmlForward::build_head(const float* hidden_row, float* logits) {
  ggml_context* context = head_.begin();
  // Only read.
  head_input_ = external_rows(context, h_.n_embd, 1, const_cast<float*>(hidden_row));
  head_logits_ = add_head(context, h_, weights_.global(), head_input_);
  head_logits_->data = logits;
  return head_.finish(head_logits_);
}

Status GgmlForward::head(const float* hidden_row, float* logits) {
  if (head_logits_ == nullptr) {
    if (Status status = build_head(hidden_row, logits); !status) return status;
  }
  head_input_->data = const_cast<float*>(hidden_row);
  head_logits_->data = logits;
  return head_.run();
}

Status GgmlForward::build_decode(DecodeGraph& graph, int n_tokens) {
  graph.n_tokens = 0;
  graph.calls.resize(static_cast<std::size_t>(h_.n_layers));
  graph.hidden.resize(static_cast<std::size_t>(n_tokens) * h_.n_embd);
  ggml_context* context = graph.runner.begin();
  ggml_tensor* hidden = external_rows(context, h_.n_embd, n_tokens, graph.hidden.data());
  for (int i = 0; i < h_.n_layers; ++i) {
    SeamCall* call = &graph.calls[static_cast<std::size_t>(i)];
    *call = {&attention_, i, n_tokens};
    hidden = add_layer(context, h_, weights_.layer(i), hidden, n_tokens, call);
  }
  graph.logits = add_head(context, h_, weights_.global(), hidden);
  // Any address: each run sets its own, and the allocator must not lay it out.
  graph.logits->data = graph.hidden.data();
  if (Status status = graph.runner.finish(graph.logits); !status) return status;
  weight_bytes_ = graph.runner.weight_bytes();
  graph.n_tokens = n_tokens;
  return {};
}

Status GgmlForward::plan_decode(int n_tokens) {
  QE_CHECK(n_tokens > 0);
  std::optional<DecodeGraph>& graph = n_tokens == 1 ? one_ : many_;
  if (!graph) {
    graph.emplace(h_.n_layers * kNodesPerLayer + kNodesOfHead, pool_.get(), n_threads_);
  }
  if (graph->n_tokens != n_tokens) {
    if (Status status = build_decode(*graph, n_tokens); !status) return status;
  }
  return plan_work();
}

Status GgmlForward::decode(std::span<const std::int32_t> tokens, Attention& attention,
                           float* logits) {
  if (Status status = plan_decode(static_cast<int>(tokens.size())); !status) return status;
  DecodeGraph& graph = tokens.size() == 1 ? *one_ : *many_;
  if (Status status = embed(tokens, graph.hidden.data()); !status) return status;
  attention_ = &attention;
  graph.logits->data = logits;
  return graph.runner.run();
}

Status GgmlForward::plan_work() {
  if (work_) return {};
  work_.emplace(/*max_nodes=*/2, pool_.get(), n_threads_);
  const auto call = [](ggml_tensor*, int ith, int nth, void* userdata) {
    const auto* call = static_cast<const WorkCall*>(userdata);
    call->work(call->data, ith, nth);
  };
  ggml_tensor* node = ggml_custom_4d(work_->begin(), GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, call,
                                     GGML_N_TASKS_MAX, &work_call_);
  Status status = work_->finish(node);
  if (!status) work_.reset();
  return status;
}

Status GgmlForward::on_all_threads(Work work, void* data) {
  if (Status status = plan_work(); !status) return status;
  work_call_ = {work, data};
  return work_->run();
}

}  // namespace

Result<std::unique_ptr<Forward>> Forward::create(const Model& model, int n_threads) {
  if (n_threads < 1 || n_threads > kMaxThreads) {
    return bad_input("the number of threads is " + std::to_string(n_threads) + " (limits 1 to " +
                     std::to_string(kMaxThreads) + "): choose another");
  }
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  Pool pool(ggml_threadpool_new(&params));
  if (!pool) return runtime_error("the threads could not be started: use fewer");
  // LoadedModel is the only Model there is.
  return std::make_unique<GgmlForward>(static_cast<const LoadedModel&>(model), std::move(pool),
                                       n_threads);
}

}  // namespace qevict
