// A model's weights in ggml buffers: repacked where the CPU has a faster layout, else in the mapped
// file itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ggml-cpp.h"
#include "model/arch/arch.h"
#include "model/gguf_file.h"
#include "model/model.h"
#include "qevict/result.h"

namespace qevict {

// Immutable after load(). The file must outlive it: tensors that are not repacked point into it.
class Weights {
 public:
  // Checks names, shapes and types of all tensors, then places them. Errors: BadInput for a tensor
  // that is missing, unknown or malformed, Runtime when memory is short, Interrupted.
  static Result<std::unique_ptr<Weights>> load(const GgufFile& file, const HParams& hparams,
                                               const ArchSpec& arch, const ModelOptions& options);
  const GlobalWeights& global() const { return global_; }
  const LayerWeights& layer(int i) const { return layers_[static_cast<std::size_t>(i)]; }
  std::string layout_summary() const;

 private:
  friend class WeightLoader;
  Weights() = default;

  GlobalWeights global_;
  std::vector<LayerWeights> layers_;
  std::vector<ggml_context_ptr> contexts_;
  std::vector<ggml_backend_buffer_ptr> buffers_;
  int n_matrices_ = 0;
  int n_repacked_ = 0;
  int n_rewritten_ = 0;
  std::string layouts_;  // names of the layouts in use
};

}  // namespace qevict
