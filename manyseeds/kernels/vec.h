// Vectors of floats for any CPU, by the compilers' vector extensions.
//
// The same bits on every CPU and by every compiler: built with -ffp-contract=off, so that a product
// and a sum are rounded once only where `plus_product` says so, and with sums over LANES lanes in
// one order, however many of them a register holds.
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if !defined(__FMA__) && !defined(__aarch64__)
#error "needs a CPU with FMA"
#endif

// Floats in a register, and the tile of a matrix product that fits into the registers: ROWS times
// COLUMNS vectors of sums, beside the COLUMNS that are multiplied and one number.
#if defined(__AVX512F__)
enum { WIDTH = 16, ROWS = 6 };  // 32 registers
#define COLUMNS 4
#elif defined(__AVX2__)
enum { WIDTH = 8, ROWS = 6 };  // 16
#define COLUMNS 2
#elif defined(__aarch64__)
enum { WIDTH = 4, ROWS = 6 };  // 32
#define COLUMNS 4
#else
#error "needs AVX or NEON"
#endif

// Lanes that a sum over many numbers has, and registers that hold them.
enum { LANES = 16, PARTS = LANES / WIDTH };

typedef float vec __attribute__((vector_size(WIDTH * sizeof(float))));
typedef int32_t mask __attribute__((vector_size(WIDTH * sizeof(int32_t))));

#if defined(__AVX512F__)
#define NUMBERS {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif defined(__AVX2__)
#define NUMBERS {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define NUMBERS {0, 1, 2, 3}
#endif

#define INLINE static inline __attribute__((always_inline))

// Before a loop whose vectors are to stay in registers: it is written out.
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE vec load(const float *p) {
  vec x;
  memcpy(&x, p, sizeof x);
  return x;
}

INLINE void store(float *p, vec x) { memcpy(p, &x, sizeof x); }

// The first n floats; the others are 0. Nothing behind them is read or written.
#if defined(__AVX512F__)
INLINE vec load_part(const float *p, int n) {
  return (vec)_mm512_maskz_loadu_ps((__mmask16)((1 << n) - 1), p);
}

INLINE void store_part(float *p, vec x, int n) {
  _mm512_mask_storeu_ps(p, (__mmask16)((1 << n) - 1), (__m512)x);
}
#elif defined(__AVX2__)
INLINE __m256i first(int n) {
  mask lanes = NUMBERS;
  return (__m256i)(lanes < n);
}

INLINE vec load_part(const float *p, int n) { return (vec)_mm256_maskload_ps(p, first(n)); }

INLINE void store_part(float *p, vec x, int n) { _mm256_maskstore_ps(p, first(n), (__m256)x); }
#else
INLINE vec load_part(const float *p, int n) {
  vec x = {0};
  for (int i = 0; i < n; i++) x[i] = p[i];
  return x;
}

INLINE void store_part(float *p, vec x, int n) {
  for (int i = 0; i < n; i++) p[i] = x[i];
}
#endif

// As many of the floats as a register holds, n at most.
INLINE vec load_up_to(const float *p, long n) {
  return n >= WIDTH ? load(p) : load_part(p, (int)n);
}

INLINE void store_up_to(float *p, vec x, long n) {
  if (n >= WIDTH) store(p, x);
  else store_part(p, x, (int)n);
}

INLINE vec all(float x) { return x - (vec){0}; }

// a + b c, rounded once.
INLINE vec plus_product(vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)b, (__m512)c, (__m512)a);
#elif defined(__AVX2__)
  return (vec)_mm256_fmadd_ps((__m256)b, (__m256)c, (__m256)a);
#else
  return (vec)vfmaq_f32((float32x4_t)a, (float32x4_t)b, (float32x4_t)c);
#endif
}

// a where the mask is set, otherwise b.
INLINE vec choose(mask m, vec a, vec b) { return (vec)(((mask)a & m) | ((mask)b & ~m)); }

// |x|.
INLINE vec size_of(vec x) { return (vec)((mask)x & 0x7fffffff); }

// x in [-limit, limit]; NaN stays.
INLINE vec clamp_to(vec x, float limit) {
#if defined(__AVX512F__)
  return (vec)_mm512_max_ps(-(__m512)all(limit), _mm512_min_ps((__m512)all(limit), (__m512)x));
#elif defined(__AVX2__)
  return (vec)_mm256_max_ps(-(__m256)all(limit), _mm256_min_ps((__m256)all(limit), (__m256)x));
#else
  return choose(x > all(limit), all(limit), choose(x < all(-limit), all(-limit), x));
#endif
}

// Lanes of a where bit d of their number is 0, else lanes of b; from_b and from_a lanes further.
INLINE vec mix(const int d, vec a, const int from_a, vec b, const int from_b) {
#if defined(__clang__)
  vec x;
  for (int i = 0; i < WIDTH; i++) x[i] = i & d ? b[i + from_b] : a[i + from_a];
  return x;
#else
  mask lanes = NUMBERS, of_b = (lanes & d) != 0;
  return __builtin_shuffle(a, b, (of_b & (lanes + WIDTH + from_b)) | (~of_b & (lanes + from_a)));
#endif
}

// Transposes a square matrix, a vector per row.
INLINE void transpose(vec *x) {
UNROLL
  for (int d = 1; d < WIDTH; d *= 2)
UNROLL
    for (int i = 0; i < WIDTH; i++)
      if (!(i & d)) {
        vec a = x[i], b = x[i + d];
        x[i] = mix(d, a, 0, b, -d);
        x[i + d] = mix(d, a, d, b, 0);
      }
}

// In lane i the sum of x[i]'s lanes, each in one order.
INLINE vec sums_of(vec *x) {
UNROLL
  for (int d = 1; d < WIDTH; d *= 2)
UNROLL
    for (int i = 0; i < WIDTH; i += 2 * d)
      x[i] = mix(d, x[i], 0, x[i + d], -d) + mix(d, x[i], d, x[i + d], 0);
  return x[0];
}

INLINE vec root(vec x) {
#if defined(__AVX512F__)
  return (vec)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (vec)_mm256_sqrt_ps((__m256)x);
#else
  return (vec)vsqrtq_f32((float32x4_t)x);
#endif
}

// The sum of LANES lanes, which are in PARTS vectors: in a tree, 8 apart first.
INLINE float sum_of(const vec *lanes) {
  float sums[LANES];
  memcpy(sums, lanes, sizeof sums);
  for (int d = LANES / 2; d > 0; d /= 2)
    for (int i = 0; i < d; i++) sums[i] += sums[i + d];
  return sums[0];
}

// The dot product of x and y [n], n a multiple of LANES.
INLINE float dot_of(long n, const float *x, const float *y) {
  vec sums[PARTS] = {0};
  for (long i = 0; i < n; i += LANES)
UNROLL
    for (int p = 0; p < PARTS; p++)
      sums[p] = plus_product(sums[p], load(x + i + p * WIDTH), load(y + i + p * WIDTH));
  return sum_of(sums);
}

#if defined(__AVX512F__)
#define INSTRUCTIONS "AVX-512"
#elif defined(__AVX2__)
#define INSTRUCTIONS "AVX2"
#else
#define INSTRUCTIONS "NEON"
#endif
