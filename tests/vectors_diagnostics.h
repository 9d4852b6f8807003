// The diagnostics of a whole-model trace, for vectors_check.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "engine/engine.h"
#include "vectors_traces.h"

namespace qevict::vectors {

// Runs the full cache and the trace's variants along its teacher tokens; one result a variant.
// int8_activations: the model's products round activations to 8 bits, which widens the bounds.
std::vector<CaseResult> check_diagnostics(Engine& engine, const nlohmann::json& trace,
                                          bool int8_activations);

}  // namespace qevict::vectors
