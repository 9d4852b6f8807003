#include "vectors_peers.h"

namespace qevict::vectors {

PeerCheck find_peer_check(const std::string& op) {
  static const struct {
    const char* op;
    PeerCheck check;
  } table[] = {
      {"kivi_key", check_kivi_key},       {"kivi_value", check_kivi_value},
      {"kivi_split", check_kivi_split},   {"zipcache_prefill", check_zipcache_prefill},
      {"kvquant_key", check_kvquant_key}, {"kvquant_value", check_kvquant_value},
  };
  for (const auto& entry : table) {
    if (op == entry.op) return entry.check;
  }
  return nullptr;
}

std::string peer_skip_reason(const std::string& op) {
  if (op == "edge_behaviour") return "what a peer does in odd settings, for information";
  return {};
}

}  // namespace qevict::vectors
