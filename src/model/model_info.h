// What a model's file says about it, without its weights.
#pragma once

#include <string>

#include "model/model.h"
#include "qevict/result.h"

namespace qevict {

// The hyperparameters as Model::load() reads them. Only the header of the file is touched: tensors
// are not checked against the architecture, and the tokenizer is not built. Errors: as
// Model::load().
Result<HParams> read_model_info(const std::string& path);

}  // namespace qevict
