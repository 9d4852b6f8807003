// ZipCache: salient tokens in 4 bits, the others in 2.
#include "kv/codecs.h"
#include "policies/parts.h"

namespace qevict {
namespace {

ZipcacheOptions options_of(const CacheConfig& config) {
  ZipcacheOptions options;
  return options;
}

}  // namespace

PolicySpec zipcache_policy() {
  return {.name = "zipcache",
          .paper = "ZipCache: Accurate and Efficient KV Cache Quantization (arXiv 2405.14256)",
          .parameters = "unimportant=0.4 streaming_gap=100",
          .schedule = Schedule::Never,
          .make_scorer = make_no_scorer,
          .make_allocator = make_uniform_allocator,
          .make_codec = [](const CodecContext& context, const CacheConfig& config) {
            return make_zipcache_codec(context, options_of(config));
          }};
}

}  // namespace qevict
