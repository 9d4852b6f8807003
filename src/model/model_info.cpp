#include "model/model_info.h"

#include <new>

#include "model/backend.h"
#include "model/gguf_file.h"
#include "model/hparams.h"

namespace qevict {

Result<HParams> read_model_info(const std::string& path) {
  init_backend();
  try {
    const Result<GgufFile> file = GgufFile::open(path, true);
    if (!file) return std::unexpected(file.error());
    const Result<const ArchSpec*> arch = read_arch(*file);
    if (!arch) return std::unexpected(arch.error());
    return read_hparams(*file, **arch);
  } catch (const std::bad_alloc&) {
    return runtime_error("no memory for the model's header (" + path + "): free memory");
  }
}

}  // namespace qevict
