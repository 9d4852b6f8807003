// The only implementation of Model; what Forward needs of it beyond the public interface.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "model/gguf_file.h"
#include "model/model.h"
#include "model/weights.h"

namespace qevict {

class LoadedModel final : public Model {
 public:
  LoadedModel(GgufFile file, HParams hparams, std::unique_ptr<Tokenizer> tokenizer)
      : file_(std::move(file)), hparams_(std::move(hparams)), tokenizer_(std::move(tokenizer)) {}
  Status load_weights(const ArchSpec& arch, const ModelOptions& options);

  const HParams& hparams() const override { return hparams_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const std::string& path() const override { return file_.path(); }
  std::string layout_summary() const override { return weights_->layout_summary(); }
  const Weights& weights() const { return *weights_; }
  const GgufFile& file() const { return file_; }

 private:
  GgufFile file_;  // outlives the weights, which point into it
  HParams hparams_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Weights> weights_;
};

}  // namespace qevict
