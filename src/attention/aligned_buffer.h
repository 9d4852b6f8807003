// A growable, 64-byte aligned array without construction; the old content is not kept on growth.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace qevict {

template <typename T>
class AlignedBuffer {
 public:
  // Room for n items; grows by half so that slow growth seldom allocates. Content is lost on
  // growth.
  void reserve(std::size_t n) {
    if (n <= capacity_) return;
    const std::size_t grown = capacity_ + capacity_ / 2;
    allocate(n > grown ? n : grown);
  }
  // Exactly n items, for large buffers that are used once.
  void resize_exactly(std::size_t n) {
    if (n != capacity_) allocate(n);
  }
  void release() {
    data_.reset();
    capacity_ = 0;
  }
  T* data() const { return data_.get(); }
  std::size_t bytes() const { return capacity_ * sizeof(T); }

 private:
  struct Free {
    void operator()(T* p) const noexcept { std::free(p); }
  };
  void allocate(std::size_t n) {
    data_.reset();
    capacity_ = 0;  // until the allocation has succeeded
    const std::size_t bytes = (n * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes > 0 ? bytes : 64)));
    if (!data_) throw std::bad_alloc();
    capacity_ = n;
  }
  std::unique_ptr<T[], Free> data_;
  std::size_t capacity_ = 0;
};

}  // namespace qevict
