// ZipCache: salient tokens in 4 bits, the others in 2.
#include "kv/codecs.h"
#include "policies/parameters.h"
#include "policies/parts.h"

namespace qevict {
namespace {

struct Options : ZipcacheOptions {
  void declare(Parameters& p) {
    p.real("unimportant", unimportant, 0.0, 1.0);
    p.integer("streaming_gap", streaming_gap, 1, 1 << 20);
  }
};

}  // namespace

PolicySpec zipcache_policy() {
  return {.name = "zipcache",
          .paper = "ZipCache: Accurate and Efficient KV Cache Quantization (arXiv 2405.14256)",
          .parameters = options_text<Options>(),
          .schedule = Schedule::Never,
          .check_parameters = check_options<Options>,
          .make_scorer = make_no_scorer,
          .make_allocator = make_uniform_allocator,
          .make_codec = [](const CodecContext& context, const CacheConfig& config) {
            return make_zipcache_codec(context, read_options<Options>(config));
          }};
}

}  // namespace qevict
