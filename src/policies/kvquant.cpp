// KVQuant, simplified: non-uniform codes with outliers apart, learnt from the sequence itself.
#include "kv/codecs.h"
#include "policies/parameters.h"
#include "policies/parts.h"

namespace qevict {
namespace {

struct Options : KvquantOptions {
  void declare(Parameters& p) {
    p.integer("bits", bits, 2, 4);
    p.real("sparsity", sparsity, 0.5, 1.0);
    p.integer("n_first", n_first, 0, 1024);
    p.integer("calibration", calibration, 2, 1 << 20);
  }
};

}  // namespace

PolicySpec kvquant_policy() {
  return {.name = "kvquant",
          .paper = "KVQuant: Towards 10 Million Context Length LLM Inference (arXiv 2401.18079)",
          .parameters = options_text<Options>(),
          .schedule = Schedule::Never,
          .check_parameters = check_options<Options>,
          .make_scorer = make_no_scorer,
          .make_allocator = make_uniform_allocator,
          .make_codec = [](const CodecContext& context, const CacheConfig& config) {
            return make_kvquant_codec(context, read_options<Options>(config));
          }};
}

}  // namespace qevict
