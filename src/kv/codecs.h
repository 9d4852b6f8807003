// The row codecs by name, with the choices that their policies offer.
#pragma once

#include <memory>

#include "kv/row_codec.h"

namespace qevict {

// KIVI: keys per channel in groups of `kKiviGroup` tokens, values per token in groups of as many
// channels; the newest tokens in fp16.
inline constexpr int kKiviGroup = 32;
struct KiviOptions {
  int bits = 2;       // 2 or 4
  int residual = 32;  // a multiple of kKiviGroup
};
std::unique_ptr<RowCodec> make_kivi_codec(const CodecContext& context, const KiviOptions& options);

// KVQuant, simplified: non-uniform codes, outliers apart in fp16, keys before RoPE. Limits of the
// keys' channels and the codebooks are learnt from the sequence itself, once it has
// `calibration` tokens beyond the first ones; until then all stay fp16.
struct KvquantOptions {
  int bits = 4;            // 2, 3 or 4
  double sparsity = 0.99;  // share that is no outlier
  int n_first = 5;         // tokens at the start that stay fp16
  int calibration = 128;
};
std::unique_ptr<RowCodec> make_kvquant_codec(const CodecContext& context,
                                             const KvquantOptions& options);

// ZipCache: the least salient tokens of each head in 2 bits, the others in 4; new tokens wait in
// fp16 until `streaming_gap` of them are there, then the whole cache is quantised again.
struct ZipcacheOptions {
  double unimportant = 0.4;
  int streaming_gap = 100;
};
std::unique_ptr<RowCodec> make_zipcache_codec(const CodecContext& context,
                                              const ZipcacheOptions& options);

}  // namespace qevict
