// Work that is done for each seed or network alone, on several threads if there are.
#pragma once
#include <stdlib.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

// How this thread computes: whether numbers next to 0 count as 0 is a mode of each thread.
static inline unsigned long arithmetic(void) {
  unsigned long mode = 0;
#if defined(__SSE__)
  mode = _mm_getcsr();
#elif defined(__aarch64__)
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
#endif
  return mode;
}

static inline void compute_as(unsigned long mode) {
#if defined(__SSE__)
  _mm_setcsr((unsigned)mode);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
  (void)mode;
#endif
}

// IEEE 754: CPUs do not agree in which results are so small that another mode makes them 0.
#if defined(__SSE__)
enum { STANDARD = 0x1f80 };
#else
enum { STANDARD = 0 };
#endif

// Memory for n floats that begins with a cache line.
static inline float *floats(long n) {
  return aligned_alloc(64, (sizeof(float) * (size_t)n + 63) / 64 * 64);
}

// The next n floats of scratch, a whole number of cache lines: those of `floats_of(n)`.
static inline long floats_of(long n) { return (n + 15) / 16 * 16; }

static inline float *take_floats(float **scratch, long n) {
  float *taken = *scratch;
  *scratch += floats_of(n);
  return taken;
}

typedef void work(const void *given, int n, float *scratch);

// Does the work for n < count; every thread has scratch of some floats. Returns 0, or 1 without
// memory.
static inline int for_each(int count, int threads, long size, work *one, const void *given) {
  (void)threads;  // without OpenMP
  int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const unsigned long mode = arithmetic();
    compute_as(STANDARD);
    float *scratch = floats(size + 1);
    if (!scratch) {
#pragma omp atomic write
      failed = 1;
    }
#pragma omp for schedule(static)
    for (int n = 0; n < count; n++)
      if (scratch) one(given, n, scratch);
    free(scratch);
    compute_as(mode);
  }
  return failed;
}
