// QE_CLONES before a function: it is compiled for several x86 levels, and the loader takes the one
// that fits the CPU. For plain loops outside of the kernels that a compiler vectorises by itself.
//
// Results have the same bits on all of them: no level contracts or reorders sums. What such a
// function calls gains only when it is inlined (QE_INLINE).
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QE_NO_CLONES  // a sanitizer is not ready yet when the loader chooses
#endif
#endif

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(QE_NO_CLONES) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define QE_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define QE_CLONES
#endif

#define QE_INLINE [[gnu::always_inline]] inline
