// The row codecs of all layers of one sequence, and what an open prompt keeps of them until it is
// committed or taken back.
#pragma once

#include <memory>
#include <vector>

#include "kv/row_codec.h"

namespace qevict {

class CodecLayers {
 public:
  bool empty() const { return layers_.empty(); }
  void add(std::unique_ptr<RowCodec> layer) { layers_.push_back(std::move(layer)); }
  RowCodec* layer(int i) const { return empty() ? nullptr : layers_[i].get(); }

  void begin_prompt() { backup_.resize(layers_.size()); }
  void finish_layer(int i, const CodecRows& rows, const ProbeRows& probes) {
    // The copy is worked on: what a rollback puts back is the original.
    std::unique_ptr<RowCodec> copy = layers_[i]->clone();
    copy->append_prompt(rows, probes);
    backup_[i] = std::move(layers_[i]);
    layers_[i] = std::move(copy);
  }
  void commit_prompt() { backup_.clear(); }
  void rollback_prompt() {
    for (std::size_t i = 0; i < backup_.size(); ++i) {
      if (backup_[i]) layers_[i] = std::move(backup_[i]);
    }
    backup_.clear();
  }

  void push_rows() {
    for (const auto& layer : layers_) layer->push_row();
  }
  void end_step() {
    for (const auto& layer : layers_) layer->end_step();
  }

  // Sums over layers; backup_bytes: of the copies kept while a prompt is open.
  TierBytes bytes() const {
    TierBytes sum;
    for (const auto& layer : layers_) sum += layer->bytes();
    return sum;
  }
  MetadataBytes metadata() const {
    MetadataBytes sum;
    for (const auto& layer : layers_) sum += layer->metadata();
    return sum;
  }
  std::size_t reserved_bytes() const {
    std::size_t sum = 0;
    for (const auto& layer : layers_) sum += layer->reserved_bytes();
    return sum;
  }
  std::size_t backup_bytes() const {
    std::size_t sum = 0;
    for (const auto& layer : backup_) {
      if (!layer) continue;
      sum += layer->bytes().total() + layer->metadata().total() + layer->reserved_bytes();
    }
    return sum;
  }

 private:
  std::vector<std::unique_ptr<RowCodec>> layers_;
  std::vector<std::unique_ptr<RowCodec>> backup_;  // [layers] while a prompt is open
};

}  // namespace qevict
