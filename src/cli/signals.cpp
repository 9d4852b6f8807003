#include "cli/signals.h"

#include <unistd.h>

#include <csignal>

namespace qevict::cli {
namespace {

constexpr int kInterruptedExit = 130;

std::atomic<bool> g_interrupt{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_interrupt(int) {
  if (g_interrupt.exchange(true)) _exit(kInterruptedExit);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: reading a chat line must notice Ctrl-C
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

const std::atomic<bool>& interrupt_flag() { return g_interrupt; }
bool interrupted_by_user() { return g_interrupt.load(); }
void clear_interrupt() { g_interrupt.store(false); }
void request_stop() { g_interrupt.store(true); }

}  // namespace qevict::cli
