// Lossless rewriting of weights into a type for which a CPU has a faster layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml.h"

namespace qevict {

// The type that holds every value of `type` exactly and has more layouts; `type` itself if there is
// none. Q5_0 is d * (c - 16) with c in 0..31 over blocks of 32, Q8_0 is d * c with c in -128..127
// over the same blocks: the scale is kept, the code is shifted.
ggml_type lossless_type(ggml_type type);

// Blocks of Q5_0 (22 bytes: fp16 d, 32 fifth bits, 32 nibbles) as Q8_0 (34 bytes: fp16 d, 32 int8).
// Values have the same bits after dequantising. `to` holds n_blocks * 34 bytes.
void rewrite_q5_0_as_q8_0(const std::byte* from, std::int64_t n_blocks, std::byte* to);

}  // namespace qevict
