#include "model/model.h"

#include <new>

#include "model/backend.h"
#include "model/hparams.h"
#include "model/llama_tokenizer.h"
#include "model/loaded_model.h"

namespace qevict {

Status LoadedModel::load_weights(const ArchSpec& arch, const ModelOptions& options) {
  Result<std::unique_ptr<Weights>> weights = Weights::load(file_, hparams_, arch, options);
  if (!weights) return std::unexpected(weights.error());
  weights_ = std::move(*weights);
  return {};
}

namespace {

Result<std::unique_ptr<Model>> load_model(const std::string& path, const ModelOptions& options) {
  Result<GgufFile> file = GgufFile::open(path, options.mmap);
  if (!file) return std::unexpected(file.error());
  const Result<const ArchSpec*> arch = read_arch(*file);
  if (!arch) return std::unexpected(arch.error());
  Result<HParams> hparams = read_hparams(*file, **arch);
  if (!hparams) return std::unexpected(hparams.error());
  Result<std::unique_ptr<Tokenizer>> tokenizer = load_tokenizer(*file);
  if (!tokenizer) return std::unexpected(tokenizer.error());
  auto model =
      std::make_unique<LoadedModel>(std::move(*file), std::move(*hparams), std::move(*tokenizer));
  if (Status status = model->load_weights(**arch, options); !status) {
    return std::unexpected(status.error());
  }
  return model;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::load(const std::string& path, const ModelOptions& options) {
  init_backend();
  try {
    return load_model(path, options);
  } catch (const std::bad_alloc&) {
    return runtime_error("no memory for the model (" + path +
                         "): free memory or use a smaller one");
  }
}

}  // namespace qevict
