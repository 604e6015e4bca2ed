// Products of matrices and sums of rows, in which every number is added up in one order: the same
// bits on every machine, and for a row whatever rows are computed beside it.
#pragma once
#include "vec.h"

// c [M, N] = start + a [M, K] b [K, N]: a(m, k) = a[m am + k ak]; rows of b and c are ldb and ldc
// apart. A number is its start plus the products for k = 0, 1, ..., each rounded once.
typedef struct {
  int M, N, K;
  const float *a;
  long am, ak;
  const float *b;
  long ldb;
  float *c;
  long ldc;
  int add;            // the start is c
  const float *bias;  // [N], otherwise the start of each row; null: 0
} matrices;

// R rows from m times C vectors of columns from n. ends: the last vector is not a whole one.
INLINE void tile(const int R, const int C, const int ends, const matrices *x, int m, int n) {
  const float *a = x->a + m * x->am, *b = x->b + n;
  float *c = x->c + m * x->ldc + n;
  const long am = x->am, ak = x->ak, ldb = x->ldb, ldc = x->ldc;
  const int part = x->N - n - (C - 1) * WIDTH;  // columns of the last vector
#define LOAD(p, j) (ends && j == C - 1 ? load_part((p) + j * WIDTH, part) : load((p) + j * WIDTH))
  vec sums[ROWS][COLUMNS];
UNROLL
  for (int r = 0; r < R; r++)
UNROLL
    for (int j = 0; j < C; j++)
      sums[r][j] = x->add ? LOAD(c + r * ldc, j) : x->bias ? LOAD(x->bias + n, j) : (vec){0};
  for (int k = 0; k < x->K; k++) {
    vec row[COLUMNS];
UNROLL
    for (int j = 0; j < C; j++) row[j] = LOAD(b + k * ldb, j);
UNROLL
    for (int r = 0; r < R; r++) {
      vec factor = all(a[r * am + k * ak]);
UNROLL
      for (int j = 0; j < C; j++) sums[r][j] = plus_product(sums[r][j], factor, row[j]);
    }
  }
UNROLL
  for (int r = 0; r < R; r++)
UNROLL
    for (int j = 0; j < C; j++) {
      float *to = c + r * ldc + j * WIDTH;
      if (ends && j == C - 1) store_part(to, sums[r][j], part);
      else store(to, sums[r][j]);
    }
#undef LOAD
}

// All rows of C vectors of columns.
INLINE void strip(const int C, const int ends, const matrices *x, int n) {
  int m = 0;
  for (; m + ROWS <= x->M; m += ROWS) tile(ROWS, C, ends, x, m, n);
  for (; m + 2 <= x->M; m += 2) tile(2, C, ends, x, m, n);
  for (; m < x->M; m++) tile(1, C, ends, x, m, n);
}

INLINE int ratio_up(int a, int b) { return (a + b - 1) / b; }

static inline void product(const matrices *x) {
  int strips = ratio_up(x->N, COLUMNS * WIDTH);
  for (int n = 0; strips > 0; strips--) {
    const int left = x->N - n;
    const int wide = ratio_up(ratio_up(left, WIDTH), strips);  // of one width: 3 + 3, not 4 + 2
    const int ends = left < wide * WIDTH;
    // clang keeps the sums of a tile in registers only where C is a constant from the beginning.
    if (wide == 1) ends ? strip(1, 1, x, n) : strip(1, 0, x, n);
    if (wide == 2) ends ? strip(2, 1, x, n) : strip(2, 0, x, n);
#if COLUMNS > 2
    if (wide == 3) ends ? strip(3, 1, x, n) : strip(3, 0, x, n);
    if (wide == 4) ends ? strip(4, 1, x, n) : strip(4, 0, x, n);
#endif
    n += wide * WIDTH;
  }
}

// to [N, M] = from [M, N], with rows ld_from and ld_to apart.
static inline void turn(int M, int N, const float *from, long ld_from, float *to, long ld_to) {
  const int whole_m = M / WIDTH * WIDTH, whole_n = N / WIDTH * WIDTH;
  for (int m = 0; m < whole_m; m += WIDTH)
    for (int n = 0; n < whole_n; n += WIDTH) {
      vec rows[WIDTH];
UNROLL
      for (int i = 0; i < WIDTH; i++) rows[i] = load(from + (m + i) * ld_from + n);
      transpose(rows);
UNROLL
      for (int i = 0; i < WIDTH; i++) store(to + (n + i) * ld_to + m, rows[i]);
    }
  for (int n = 0; n < N; n++)
    for (int m = n < whole_n ? whole_m : 0; m < M; m++) to[n * ld_to + m] = from[m * ld_from + n];
}

// The dot product of N numbers each.
INLINE float dot_of_row(int N, const float *x, const float *y) {
  vec sums[PARTS] = {0};
  for (int n = 0; n < N; n += LANES)
UNROLL
    for (int p = 0; p < PARTS; p++) {
      const int at = n + p * WIDTH;
      if (at < N)
        sums[p] = plus_product(sums[p], load_up_to(x + at, N - at), load_up_to(y + at, N - at));
    }
  return sum_of(sums);
}

// The first n lanes.
INLINE mask lanes_before(long n) {
  const mask lanes = NUMBERS;
  return lanes < (int)(n < WIDTH ? n : WIDTH);
}

// The largest lane; NaN is passed over.
INLINE float largest_of(vec x) {
  float most = x[0];
  for (int i = 1; i < WIDTH; i++) most = x[i] > most ? x[i] : most;
  return most;
}
