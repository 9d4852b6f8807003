#include "model/backend.h"

#include <mutex>

#include "ggml.h"
#include "llama.h"
#include "model/model.h"

namespace qevict {
namespace {

// Loading and tokenising log on the calling thread, so the text needs no lock.
thread_local std::string last_error;

void keep_errors(ggml_log_level level, const char* text, void*) {
  if (level != GGML_LOG_LEVEL_ERROR || text == nullptr) return;
  std::string line(text);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  // llama.cpp reports the cause first and then, a level up, only that the call failed.
  if (last_error.empty()) last_error = line;
}

template <typename Function>
Function cpu_function(const char* name) {
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(cpu_device());
  return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(reg, name));
}

}  // namespace

void init_backend() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(keep_errors, nullptr);  // ggml's log too
    llama_backend_init();
  });
}

std::string take_backend_error() {
  std::string text;
  text.swap(last_error);
  return text;
}

ggml_backend_dev_t cpu_device() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

std::vector<ggml_backend_buffer_type_t> cpu_extra_buffer_types() {
  std::vector<ggml_backend_buffer_type_t> types;
  auto get = cpu_function<ggml_backend_dev_get_extra_bufts_t>("ggml_backend_dev_get_extra_bufts");
  if (get == nullptr) return types;
  for (ggml_backend_buffer_type_t* type = get(cpu_device()); type != nullptr && *type; ++type) {
    types.push_back(*type);
  }
  return types;
}

std::string backend_version() {
  return std::string("llama.cpp ") + llama_version() + ", ggml " + ggml_version() + " (" +
         ggml_commit() + ")";
}

std::string backend_cpu_features() {
  init_backend();
  auto get = cpu_function<ggml_backend_get_features_t>("ggml_backend_get_features");
  if (get == nullptr) return "";
  std::string text;
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(cpu_device());
  for (ggml_backend_feature* f = get(reg); f != nullptr && f->name != nullptr; ++f) {
    if (std::string(f->value) == "0") continue;
    if (!text.empty()) text += ' ';
    text += f->name;
    if (std::string(f->value) != "1") text += std::string("=") + f->value;
  }
  return text;
}

}  // namespace qevict
