// What `qevict bench kernels` measures: caches of one shape in memory, and passes over them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace qevict::cli {

// How a tier's windows are stored. A new format is a line in kTierFormats.
struct TierFormat {
  std::string_view name;
  bool quantized;
  void (*apply)(Geometry& geometry);  // sets what the codes depend on
};
std::span<const TierFormat> tier_formats();

struct KernelShape {
  int head_dim = 64;
  int group = 7;  // query heads a KV head
  int n_kv_heads = 2;
  int tokens = 16384;  // of one cache
  Geometry geometry(const TierFormat& format) const;
};

// Caches of a format that together hold at least `bytes` (or one cache of fewer tokens, when it is
// asked for less).
class TierScene {
 public:
  TierScene(const KernelShape& shape, const TierFormat& format, std::size_t bytes);
  // One decode step's attention over every cache, as the engine does it: items of 4 groups, the
  // phases of Quantized windows once an item, then each KV head; masses collected.
  void attend(const KernelTable& kernels);
  // Of that, the phases alone.
  void compute_phases(const KernelTable& kernels);
  double token_heads() const;  // tokens times KV heads of a pass
  std::size_t bytes() const { return bytes_; }
  double bytes_per_token_head() const { return static_cast<double>(bytes_) / token_heads(); }
  const TierFormat& format() const { return format_; }

 private:
  struct Free {
    void operator()(std::uint8_t* p) const noexcept;
  };
  void phases_of_item(const KernelTable& kernels, std::size_t first);
  QuantRange range() const { return {range_keys_.data(), range_values_.data()}; }

  const TierFormat& format_;
  Geometry g_;
  RopeSpec rope_;
  WindowPhases phases_;
  std::size_t groups_per_cache_, bytes_ = 0;
  std::vector<std::unique_ptr<std::uint8_t[], Free>> buffers_;
  std::vector<GroupRef> groups_;
  std::vector<std::int32_t> windows_;  // of one cache, in slot order
  std::vector<fp16_t> range_keys_, range_values_;
  std::vector<float> q_, cos_, sin_, q_back_, item_phases_, o_, m_, l_, window_sum_, group_max_;
};

// Causal attention of a prompt over its own rows, one KV head.
class PromptScene {
 public:
  PromptScene(const KernelShape& shape, int tokens);
  void attend(const KernelTable& kernels);
  double flops() const;  // 4 D a visible pair and query head

 private:
  Geometry g_;
  RopeSpec rope_;
  int tokens_;
  std::vector<fp16_t> k_, v_;
  std::vector<float> q_, out_, mass_;
  std::unique_ptr<std::uint8_t[], void (*)(std::uint8_t*)> scratch_;
};

// Reads `bytes` of memory as fast as the C library can: the roof.
class StreamScene {
 public:
  explicit StreamScene(std::size_t bytes) : data_(bytes, 1) {}
  void read();
  std::size_t bytes() const { return data_.size(); }

 private:
  std::vector<std::uint8_t> data_;
  std::size_t found_ = 0;  // so that reading has an effect
};

}  // namespace qevict::cli
