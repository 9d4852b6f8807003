// Records of equal size, appended one at a time. Storage grows by blocks of a fixed number of
// records, so that nothing is ever moved or held twice; what is allocated and not in use is at most
// one block and is reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace qevict {

class RecordStore {
 public:
  RecordStore() = default;
  RecordStore(std::size_t record_bytes, int records_a_block)
      : record_bytes_(record_bytes), records_a_block_(records_a_block) {}

  int size() const { return size_; }
  // Room for one more, so that the next push() does not allocate.
  void reserve_one() {
    if (size_ == static_cast<int>(blocks_.size()) * records_a_block_) {
      blocks_.emplace_back(record_bytes_ * records_a_block_);
    }
  }
  std::uint8_t* push() {
    reserve_one();
    return at(size_++);
  }
  std::uint8_t* at(int i) {
    return blocks_[i / records_a_block_].data() + record_bytes_ * (i % records_a_block_);
  }
  const std::uint8_t* at(int i) const { return const_cast<RecordStore*>(this)->at(i); }
  // Frees all but the first block.
  void clear() {
    if (blocks_.size() > 1) {
      blocks_.resize(1);
      blocks_.shrink_to_fit();
    }
    size_ = 0;
  }
  std::size_t record_bytes() const { return record_bytes_; }
  std::size_t bytes() const { return record_bytes_ * size_; }
  std::size_t reserved_bytes() const {
    return record_bytes_ * (blocks_.size() * records_a_block_ - size_);
  }

 private:
  std::size_t record_bytes_ = 0;
  int records_a_block_ = 1;
  int size_ = 0;
  std::vector<std::vector<std::uint8_t>> blocks_;
};

}  // namespace qevict
