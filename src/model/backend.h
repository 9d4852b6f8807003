// What every user of ggml and llama.cpp in this folder needs once: set-up, silence, the CPU device.
//
// Both libraries print to stderr by default. Here everything they log goes to a sink that keeps the
// last error, so that a failed call can say why. Thread safety: every function may be called from
// any thread.
#pragma once

#include <string>
#include <vector>

#include "ggml-backend.h"

namespace qevict {

// Initialises ggml and llama.cpp and silences their logging; cheap after the first call.
void init_backend();

// The last error that this thread's calls logged since it was last taken, on one line; "" if none.
std::string take_backend_error();

ggml_backend_dev_t cpu_device();

// The CPU's weight layouts beside the plain one (repacked, AMX, ...), best first.
std::vector<ggml_backend_buffer_type_t> cpu_extra_buffer_types();

}  // namespace qevict
