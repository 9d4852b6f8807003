// KVQuant, simplified: non-uniform codes with outliers apart, learnt from the sequence itself.
#include "kv/codecs.h"
#include "policies/parts.h"

namespace qevict {
namespace {

KvquantOptions options_of(const CacheConfig& config) {
  KvquantOptions options;
  options.n_first = config.n_sink;
  return options;
}

}  // namespace

PolicySpec kvquant_policy() {
  return {.name = "kvquant",
          .paper = "KVQuant: Towards 10 Million Context Length LLM Inference (arXiv 2401.18079)",
          .parameters = "bits=2|3|4 sparsity=0.99 calibration=128 n_sink=5",
          .schedule = Schedule::Never,
          .make_scorer = make_no_scorer,
          .make_allocator = make_uniform_allocator,
          .make_codec = [](const CodecContext& context, const CacheConfig& config) {
            return make_kvquant_codec(context, options_of(config));
          }};
}

}  // namespace qevict
