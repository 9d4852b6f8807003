// A model's hyperparameters from the metadata of its file.
#pragma once

#include "model/arch/arch.h"
#include "model/gguf_file.h"
#include "model/model.h"
#include "qevict/result.h"

namespace qevict {

// The architecture that the file names. Errors: not one of arch_names(), no plain model.
Result<const ArchSpec*> read_arch(const GgufFile& file);

// Everything but the tensors' shapes is checked. Errors name key, value and limits; models whose
// graph would differ from ours (experts, partial or stretched RoPE, ...) are refused.
Result<HParams> read_hparams(const GgufFile& file, const ArchSpec& arch);

}  // namespace qevict
