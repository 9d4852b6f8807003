#include "kv/ledger.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace qevict {

void Ledger::put(WindowId window, std::vector<std::uint8_t> block) {
  block_bytes_ += block.size();
  const bool added = blocks_.emplace(window, std::move(block)).second;
  QE_CHECK(added);  // an entry that exists already would be quantised twice
}

const std::vector<std::uint8_t>& Ledger::block(WindowId window) const {
  const auto it = blocks_.find(window);
  QE_CHECK(it != blocks_.end());
  return it->second;
}

std::vector<std::uint8_t> Ledger::take(WindowId window) {
  const auto it = blocks_.find(window);
  QE_CHECK(it != blocks_.end());
  std::vector<std::uint8_t> block = std::move(it->second);
  block_bytes_ -= block.size();
  blocks_.erase(it);
  return block;
}

void Ledger::erase(WindowId window) {
  const auto it = blocks_.find(window);
  if (it == blocks_.end()) return;
  block_bytes_ -= it->second.size();
  blocks_.erase(it);
}

std::size_t Ledger::entry_bytes() const {
  // A node: link, key and vector header; a bucket: one pointer.
  constexpr std::size_t kNode = sizeof(void*) + sizeof(decltype(blocks_)::value_type);
  return blocks_.empty() ? 0 : blocks_.size() * kNode + blocks_.bucket_count() * sizeof(void*);
}

std::vector<WindowId> Ledger::windows() const {
  std::vector<WindowId> ids;
  ids.reserve(blocks_.size());
  for (const auto& entry : blocks_) ids.push_back(entry.first);
  std::ranges::sort(ids);
  return ids;
}

void Ledger::clear() {
  blocks_.clear();
  block_bytes_ = 0;
}

}  // namespace qevict
