// KIVI: all tokens but the newest in 2 or 4 bits; keys per channel, values per token.
#include "kv/codecs.h"
#include "policies/parts.h"

namespace qevict {
namespace {

KiviOptions options_of(const CacheConfig& config) {
  KiviOptions options;
  return options;
}

}  // namespace

PolicySpec kivi_policy() {
  return {
      .name = "kivi",
      .paper = "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache (arXiv 2402.02750)",
      .parameters = "bits=2|4 residual=32",
      .schedule = Schedule::Never,
      .make_scorer = make_no_scorer,
      .make_allocator = make_uniform_allocator,
      .make_codec = [](const CodecContext& context, const CacheConfig& config) {
        return make_kivi_codec(context, options_of(config));
      }};
}

}  // namespace qevict
