// Checks of the peer vectors: one JSON object a file (`source`, `op`, `params`, `inputs`,
// `expected`, `tolerance`), one function an op. All throw json::exception on malformed files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "vectors_io.h"

namespace qevict::vectors {

using PeerCheck = void (*)(const nlohmann::json& file, Check& check);

// Null when the op is unknown.
PeerCheck find_peer_check(const std::string& op);
// Ops that are not checked: the reason, or empty.
std::string peer_skip_reason(const std::string& op);

// vectors_kivi.cpp, vectors_zipcache.cpp, vectors_kvquant.cpp
void check_kivi_key(const nlohmann::json& file, Check& check);
void check_kivi_value(const nlohmann::json& file, Check& check);
void check_kivi_split(const nlohmann::json& file, Check& check);
void check_zipcache_prefill(const nlohmann::json& file, Check& check);
void check_kvquant_key(const nlohmann::json& file, Check& check);
void check_kvquant_value(const nlohmann::json& file, Check& check);

}  // namespace qevict::vectors
