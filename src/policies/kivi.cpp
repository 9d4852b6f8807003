// KIVI: all tokens but the newest in 2 or 4 bits; keys per channel, values per token.
#include <string>

#include "kv/codecs.h"
#include "policies/parameters.h"
#include "policies/parts.h"

namespace qevict {
namespace {

enum class Bits : std::uint8_t { Two, Four };

struct Options {
  Bits bits = Bits::Two;
  int residual = KiviOptions{}.residual;
  void declare(Parameters& p) {
    p.choice("bits", bits, {"2", "4"});
    p.integer("residual", residual, kKiviGroup, 1 << 20);
  }
};

Status check(const CacheConfig& config) {
  if (Status ok = check_options<Options>(config); !ok) return ok;
  const int residual = read_options<Options>(config).residual;
  if (residual % kKiviGroup == 0) return {};
  return bad_input("residual is " + std::to_string(residual) + " (--policy): use a multiple of " +
                   std::to_string(kKiviGroup) + ", the tokens that a group of keys has");
}

}  // namespace

PolicySpec kivi_policy() {
  return {.name = "kivi",
          .paper =
              "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache (arXiv "
              "2402.02750)",
          .parameters = options_text<Options>(),
          .schedule = Schedule::Never,
          .check_parameters = check,
          .make_scorer = make_no_scorer,
          .make_allocator = make_uniform_allocator,
          .make_codec = [](const CodecContext& context, const CacheConfig& config) {
            const auto options = read_options<Options>(config);
            return make_kivi_codec(context, {options.bits == Bits::Two ? 2 : 4, options.residual});
          }};
}

}  // namespace qevict
