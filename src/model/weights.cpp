#include "model/weights.h"

#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <unordered_set>

#include "ggml-cpu.h"
#include "model/backend.h"
#include "model/weight_rewrite.h"

namespace qevict {
namespace {

std::string shape_text(std::int64_t n_in, std::int64_t n_out) {
  return n_out == 0 ? std::to_string(n_in) : std::to_string(n_in) + " x " + std::to_string(n_out);
}

std::string shape_text(const GgufTensor& tensor) {
  std::string text = std::to_string(tensor.shape[0]);
  for (int i = 1; i < tensor.n_dims; ++i) text += " x " + std::to_string(tensor.shape[i]);
  return text;
}

// Types that ggml can multiply with and read row by row on the CPU; the others abort there.
bool usable_matrix(ggml_type type) {
  const ggml_type_traits_cpu* cpu = ggml_get_type_traits_cpu(type);
  const bool readable = type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float != nullptr;
  return cpu != nullptr && cpu->vec_dot != nullptr && readable;
}

}  // namespace

class WeightLoader {
 public:
  WeightLoader(const GgufFile& file, const HParams& hparams, const ModelOptions& options)
      : file_(file), hparams_(hparams), options_(options), weights_(new Weights()) {}

  Result<std::unique_ptr<Weights>> run(const ArchSpec& arch) {
    if (Status status = plan(arch); !status) return std::unexpected(status.error());
    if (Status status = place_mapped(); !status) return std::unexpected(status.error());
    if (Status status = place_repacked(); !status) return std::unexpected(status.error());
    if (options_.progress) options_.progress(1.0F);
    return std::move(weights_);
  }

 private:
  // Where a matrix is kept (null: in the mapped file) and as which type.
  struct Layout {
    ggml_backend_buffer_type_t buffer = nullptr;
    ggml_type type = GGML_TYPE_F32;
  };
  struct Placement {
    const GgufTensor* source;
    ggml_tensor** slot;
    Layout layout;
  };
  using Checked = Result<const GgufTensor*>;

  Status plan(const ArchSpec& arch);
  template <typename Slots>
  Status plan_rule(const TensorRule<Slots>& rule, const std::string& prefix, Slots& slots);
  Checked check(const std::string& name, std::int64_t n_in, std::int64_t n_out, bool required);
  Status check_vector(const GgufTensor& tensor) const;
  Status refuse_unused(const ArchSpec& arch) const;
  Layout choose_layout(const GgufTensor& tensor) const;
  ggml_backend_buffer_type_t fast_buffer(const GgufTensor& tensor, ggml_type type) const;
  ggml_tensor* new_tensor(ggml_context* context, const Placement& placement) const;
  Result<ggml_context*> new_context(std::size_t n_tensors);
  Status place_mapped();
  Status place_repacked();
  Status fill(const std::vector<const Placement*>& group, std::uint64_t& done, std::uint64_t total);
  void set_rewritten(const Placement& placement);
  void release_pages(const GgufTensor& tensor) const;
  void read_ahead(const GgufTensor& tensor) const;

  const GgufFile& file_;
  const HParams& hparams_;
  const ModelOptions& options_;
  std::unique_ptr<Weights> weights_;
  std::vector<Placement> placements_;
  std::unordered_set<std::string> used_;
  std::vector<std::byte> rewritten_;
};

Status WeightLoader::plan(const ArchSpec& arch) {
  const TensorRules rules = arch.rules(hparams_);
  weights_->layers_.resize(static_cast<std::size_t>(hparams_.n_layers));
  for (const auto& rule : rules.global) {
    if (Status status = plan_rule(rule, "", weights_->global_); !status) return status;
  }
  for (int i = 0; i < hparams_.n_layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    for (const auto& rule : rules.layer) {
      Status status = plan_rule(rule, prefix, weights_->layers_[static_cast<std::size_t>(i)]);
      if (!status) return status;
    }
  }
  const GgufTensor* embeddings = file_.find_tensor("token_embd.weight");
  if (file_.find_tensor("output.weight") == nullptr) {
    // Tied: the head multiplies with the embeddings, possibly in a layout of its own.
    placements_.push_back({embeddings, &weights_->global_.output, choose_layout(*embeddings)});
    ++weights_->n_matrices_;
  }
  return refuse_unused(arch);
}

template <typename Slots>
Status WeightLoader::plan_rule(const TensorRule<Slots>& rule, const std::string& prefix,
                               Slots& slots) {
  const Checked tensor = check(prefix + rule.name, rule.n_in, rule.n_out, rule.required);
  if (!tensor) return std::unexpected(tensor.error());
  if (*tensor == nullptr) return {};
  const bool rows = std::strcmp(rule.name, "token_embd.weight") == 0;
  const bool matrix = rule.n_out != 0 && !rows;
  weights_->n_matrices_ += matrix;
  const Layout mapped = {nullptr, static_cast<ggml_type>((*tensor)->type)};
  placements_.push_back(
      {*tensor, &(slots.*(rule.slot)), matrix ? choose_layout(**tensor) : mapped});
  return {};
}

// Null: absent and not required.
WeightLoader::Checked WeightLoader::check(const std::string& name, std::int64_t n_in,
                                          std::int64_t n_out, bool required) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) {
    if (!required) return nullptr;
    return file_.error("tensor " + quoted(name) + " is missing");
  }
  used_.insert(name);
  const std::int64_t want[4] = {n_in, n_out == 0 ? 1 : n_out, 1, 1};
  if (!std::equal(want, want + 4, tensor->shape.begin())) {
    return file_.error("tensor " + quoted(name) + " is " + shape_text(*tensor) + ", expected " +
                       shape_text(n_in, n_out));
  }
  const auto type = static_cast<ggml_type>(tensor->type);
  if (n_out == 0) {
    if (Status status = check_vector(*tensor); !status) return std::unexpected(status.error());
  } else if (!usable_matrix(type)) {
    return file_.error("tensor " + quoted(name) + " has the type " + ggml_type_name(type) +
                           ", which ggml cannot multiply on the CPU",
                       "quantise the model to another type");
  }
  return tensor;
}

Status WeightLoader::check_vector(const GgufTensor& tensor) const {
  if (tensor.type != GGML_TYPE_F32) {
    return file_.error("tensor " + quoted(tensor.name) + " has the type " +
                       ggml_type_name(static_cast<ggml_type>(tensor.type)) + ", expected f32");
  }
  const std::byte* data = file_.data().data() + tensor.offset;
  for (std::int64_t i = 0; i < tensor.n_elements(); ++i) {
    float x = 0.0F;
    std::memcpy(&x, data + i * sizeof(float), sizeof(float));
    if (!std::isfinite(x)) {
      return file_.error("tensor " + quoted(tensor.name) +
                         " holds a value that is not finite (index " + std::to_string(i) + ")");
    }
  }
  return {};
}

// A tensor that we would ignore means a graph that we would get wrong.
Status WeightLoader::refuse_unused(const ArchSpec& arch) const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (used_.contains(tensor.name)) continue;
    if (arch.rope_factors && tensor.name == "rope_freqs.weight") continue;
    return file_.error("tensor " + quoted(tensor.name) + " is not one that " + arch.name +
                           " models of this version have",
                       "use a model without it");
  }
  return {};
}

// The same choice as llama.cpp's, so that results agree, except for types without a fast layout
// that another type with one can hold exactly.
WeightLoader::Layout WeightLoader::choose_layout(const GgufTensor& tensor) const {
  const auto type = static_cast<ggml_type>(tensor.type);
  const Layout mapped = {nullptr, type};
  if (!options_.repack) return mapped;
  if (ggml_backend_buffer_type_t fast = fast_buffer(tensor, type)) return {fast, type};
  const ggml_type exact = lossless_type(type);
  if (exact == type || options_.rewrite == WeightRewrite::Never) return mapped;
  if (ggml_backend_buffer_type_t fast = fast_buffer(tensor, exact)) return {fast, exact};
  // Without a fast layout of the other type the gain is small (docs/performance.md).
  if (options_.rewrite == WeightRewrite::Auto) return mapped;
  return {ggml_backend_cpu_buffer_type(), exact};
}

// The first layout in which the CPU can multiply this matrix kept as `type`; null: none but the
// plain one.
ggml_backend_buffer_type_t WeightLoader::fast_buffer(const GgufTensor& tensor,
                                                     ggml_type type) const {
  constexpr std::int64_t kRows = 512;
  for (ggml_backend_buffer_type_t buffer : cpu_extra_buffer_types()) {
    ggml_context_ptr context(ggml_init({ggml_tensor_overhead() * 4, nullptr, true}));
    if (!context) return nullptr;
    ggml_tensor* matrix = new_tensor(context.get(), {&tensor, nullptr, {nullptr, type}});
    ggml_tensor* rows = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, matrix->ne[0], kRows);
    ggml_tensor* product = ggml_mul_mat(context.get(), matrix, rows);
    ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(buffer, 0));
    matrix->buffer = empty.get();
    if (ggml_backend_dev_supports_op(cpu_device(), product)) return buffer;
  }
  return nullptr;
}

ggml_tensor* WeightLoader::new_tensor(ggml_context* context, const Placement& placement) const {
  const GgufTensor& source = *placement.source;
  ggml_tensor* tensor =
      ggml_new_tensor(context, placement.layout.type, source.n_dims, source.shape.data());
  ggml_set_name(tensor, source.name.c_str());
  return tensor;
}

Result<ggml_context*> WeightLoader::new_context(std::size_t n_tensors) {
  ggml_context* context = ggml_init({ggml_tensor_overhead() * (n_tensors + 1), nullptr, true});
  if (context == nullptr) return runtime_error("no memory for the tensor table: free memory");
  weights_->contexts_.emplace_back(context);
  return context;
}

Status WeightLoader::place_mapped() {
  const Result<ggml_context*> context = new_context(placements_.size());
  if (!context) return std::unexpected(context.error());
  auto* data = const_cast<std::byte*>(file_.data().data());
  ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(data, file_.data().size());
  if (buffer == nullptr) return runtime_error("no memory for a buffer: free memory");
  weights_->buffers_.emplace_back(buffer);
  ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  for (const Placement& placement : placements_) {
    if (placement.layout.buffer != nullptr) continue;
    ggml_tensor* tensor = new_tensor(*context, placement);
    if (ggml_backend_tensor_alloc(buffer, tensor, data + placement.source->offset) !=
        GGML_STATUS_SUCCESS) {
      return runtime_error("tensor " + quoted(placement.source->name) + " could not be placed");
    }
    read_ahead(*placement.source);
    *placement.slot = tensor;
  }
  return {};
}

Status WeightLoader::place_repacked() {
  std::uint64_t total = 0;
  for (const Placement& placement : placements_) {
    if (placement.layout.buffer != nullptr) total += placement.source->n_bytes;
  }
  std::uint64_t done = 0;
  std::vector<ggml_backend_buffer_type_t> types = cpu_extra_buffer_types();
  types.push_back(ggml_backend_cpu_buffer_type());
  for (ggml_backend_buffer_type_t type : types) {
    std::vector<const Placement*> group;
    for (const Placement& placement : placements_) {
      if (placement.layout.buffer == type) group.push_back(&placement);
    }
    if (group.empty()) continue;
    const Result<ggml_context*> context = new_context(group.size());
    if (!context) return std::unexpected(context.error());
    for (const Placement* placement : group) *placement->slot = new_tensor(*context, *placement);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(*context, type);
    if (buffer == nullptr) {
      return runtime_error("no memory for " + std::to_string(total) +
                           " bytes of repacked weights (" + file_.path() +
                           "): free memory or load without repacking");
    }
    weights_->buffers_.emplace_back(buffer);
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (type != ggml_backend_cpu_buffer_type()) {
      weights_->n_repacked_ += static_cast<int>(group.size());
      if (!weights_->layouts_.empty()) weights_->layouts_ += ", ";
      weights_->layouts_ += ggml_backend_buft_name(type);
    }
    if (Status status = fill(group, done, total); !status) return status;
  }
  return {};
}

Status WeightLoader::fill(const std::vector<const Placement*>& group, std::uint64_t& done,
                          std::uint64_t total) {
  for (const Placement* placement : group) {
    if (options_.cancel != nullptr && options_.cancel->load()) {
      return interrupted("loading was cancelled (" + file_.path() + "): start again");
    }
    const GgufTensor& source = *placement->source;
    if (placement->layout.type != static_cast<ggml_type>(source.type)) {
      set_rewritten(*placement);
    } else {
      ggml_backend_tensor_set(*placement->slot, file_.data().data() + source.offset, 0,
                              source.n_bytes);
    }
    // The embeddings' rows are read from the file.
    if (source.name != "token_embd.weight") release_pages(source);
    done += source.n_bytes;
    if (options_.progress) options_.progress(static_cast<float>(done) / static_cast<float>(total));
  }
  return {};
}

void WeightLoader::set_rewritten(const Placement& placement) {
  const std::size_t bytes = ggml_nbytes(*placement.slot);
  rewritten_.resize(std::max(rewritten_.size(), bytes));
  const std::int64_t blocks = placement.source->n_elements() / ggml_blck_size(GGML_TYPE_Q5_0);
  rewrite_q5_0_as_q8_0(file_.data().data() + placement.source->offset, blocks, rewritten_.data());
  ggml_backend_tensor_set(*placement.slot, rewritten_.data(), 0, bytes);
  ++weights_->n_rewritten_;
}

// Faults a mapped tensor in at load, so that the first prompt neither waits for the disk nor looks
// as if it had allocated the weights. Kernels before 5.14 refuse the advice; then pages come as
// they are read.
void WeightLoader::read_ahead(const GgufTensor& tensor) const {
#ifdef MADV_POPULATE_READ
  if (!file_.is_mapped()) return;
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(file_.data().data()) + tensor.offset;
  const std::uintptr_t first = begin / kPage * kPage;
  ::madvise(reinterpret_cast<void*>(first), begin + tensor.n_bytes - first, MADV_POPULATE_READ);
#endif
}

// The file's copy of a repacked tensor is not read again: give its memory back.
void WeightLoader::release_pages(const GgufTensor& tensor) const {
  if (!file_.is_mapped()) return;
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(file_.data().data()) + tensor.offset;
  const std::uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const std::uintptr_t last = (begin + tensor.n_bytes) / kPage * kPage;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

Result<std::unique_ptr<Weights>> Weights::load(const GgufFile& file, const HParams& hparams,
                                               const ArchSpec& arch, const ModelOptions& options) {
  init_backend();
  return WeightLoader(file, hparams, options).run(arch);
}

std::string Weights::layout_summary() const {
  std::string text = "repacked " + std::to_string(n_repacked_) + " of " +
                     std::to_string(n_matrices_) + " matrices";
  if (n_repacked_ > 0) text += " (" + layouts_ + ")";
  if (n_rewritten_ > 0) text += ", " + std::to_string(n_rewritten_) + " rewritten as Q8_0";
  return text;
}

}  // namespace qevict
