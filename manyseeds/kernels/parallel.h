// Work that is done for each seed or network alone, on several threads if there are.
#pragma once
#include <stdlib.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

// How this thread rounds: whether numbers next to 0 count as 0 is a mode of each thread.
static inline unsigned long rounding(void) {
  unsigned long mode = 0;
#if defined(__SSE__)
  mode = _mm_getcsr();
#elif defined(__aarch64__)
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
#endif
  return mode;
}

static inline void round_as(unsigned long mode) {
#if defined(__SSE__)
  _mm_setcsr((unsigned)mode);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
  (void)mode;
#endif
}

// Memory for n floats that begins with a cache line.
static inline float *floats(long n) {
  return aligned_alloc(64, (sizeof(float) * n + 63) / 64 * 64);
}

typedef void work(const void *given, int n, float *scratch);

// Does the work for n < count; every thread has scratch of some floats. Returns 0, or 1 without
// memory.
static inline int for_each(int count, int threads, long size, work *one, const void *given) {
  (void)threads;  // without OpenMP
  int failed = 0;
  const unsigned long mode = rounding();
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    round_as(mode);
    float *scratch = floats(size + 1);
    if (!scratch) {
#pragma omp atomic write
      failed = 1;
    }
#pragma omp for schedule(static)
    for (int n = 0; n < count; n++)
      if (scratch) one(given, n, scratch);
    free(scratch);
  }
  return failed;
}
