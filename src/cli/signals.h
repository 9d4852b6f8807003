// Ctrl-C: the first asks for a stop, the second ends the program at once (exit code 130).
//
// Thread safety: the flag may be read by any thread; the other functions are the main thread's.
#pragma once

#include <atomic>

namespace qevict::cli {

// Also ignores SIGPIPE: a closed pipe is an error of write().
void install_signal_handlers();

// Set by the first SIGINT or SIGTERM; hand it to the engine as its cancel flag.
const std::atomic<bool>& interrupt_flag();
bool interrupted_by_user();
// For loops that go on after an interruption (chat).
void clear_interrupt();
// Asks for a stop as Ctrl-C does (the reader of our output has gone).
void request_stop();

}  // namespace qevict::cli
