// QE_CHECK: aborts on a caller's bug. Never reachable from input. QE_DCHECK: the same, debug only.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace qevict::detail {
[[noreturn]] inline void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "qevict: internal error: %s (%s:%d)\n", expression, file, line);
  std::abort();
}
}  // namespace qevict::detail

#define QE_CHECK(x) \
  ((x) ? static_cast<void>(0) : ::qevict::detail::check_failed(#x, __FILE__, __LINE__))
#ifdef NDEBUG
#define QE_DCHECK(x) static_cast<void>(0)
#else
#define QE_DCHECK(x) QE_CHECK(x)
#endif
