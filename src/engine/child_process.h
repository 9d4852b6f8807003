// Runs another program and waits for it, watching a cancel flag. Standard input is empty; standard
// output and error go to one file. Used by `pull` (curl, pip, sha256sum).
// Thread safety: free functions.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "qevict/result.h"

namespace qevict {

struct ChildOptions {
  std::string output_file;
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's
  const std::atomic<bool>* cancel = nullptr;                     // ends the child (SIGTERM)
  std::function<void()> on_tick;                                 // about ten times a second
};

// The exit status; 127 if the program could not be found, 128 + N after signal N. Errors: no
// process could be created, cancelled (ErrorCode::Interrupted).
Result<int> run_child(const std::vector<std::string>& command, const ChildOptions& options);

}  // namespace qevict
