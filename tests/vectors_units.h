// Checks of the unit vectors, one function an op. All throw json::exception on malformed cases.
#pragma once

#include <nlohmann/json.hpp>

#include "kernels/rope.h"
#include "vectors_io.h"

namespace qevict::vectors {

using UnitCheck = void (*)(const nlohmann::json& test_case, Check& check);

// Null when the op is unknown.
UnitCheck find_unit_check(const std::string& op);

void check_route(const nlohmann::json& test_case, Check& check);
void check_mixed_attention(const nlohmann::json& test_case, Check& check);
void check_layer_stream(const nlohmann::json& test_case, Check& check);
void check_missed_mass(const nlohmann::json& test_case, Check& check);
void check_churn(const nlohmann::json& test_case, Check& check);
void check_agreement(const nlohmann::json& test_case, Check& check);
void check_revivals(const nlohmann::json& test_case, Check& check);

// "neox" or "norm", as in the vectors.
RopePairing read_pairing(const nlohmann::json& kind);

}  // namespace qevict::vectors
