// The replay memory of off-policy algorithms: a ring of C transitions of each of S seeds, all at the
// same position. A transition is a row of W floats: obs, next_obs, action, reward, terminated; D is 1
// where actions are numbers.
#pragma once
#include "parallel.h"
#include "vec.h"

typedef struct {
  int S, C, O, D;
  const int64_t *added;  // [1], transitions per seed so far
  float *rows;           // [S, C, 2 * O + D + 2]
} memory;

// Floats of a transition, W.
INLINE long width_of_row(const memory *m) { return 2L * m->O + m->D + 2; }

// Transitions of each seed that are in the memory.
INLINE long stored_in(const memory *m) { return *m->added < m->C ? *m->added : m->C; }

// The one of a seed that a uniform chooses among all.
INLINE const float *drawn_from(const memory *m, int s, float uniform) {
  const long size = stored_in(m);
  long index = (long)(uniform * (float)size);
  if (index >= size) index = size - 1;  // u * size may round up
  return m->rows + (s * (long)m->C + index) * width_of_row(m);
}

// Whether those that n uniforms of each seed choose, [S, n], have actions that are numbers below A.
INLINE int holds_actions(const memory *m, long n, const float *uniforms, int A) {
  if (!stored_in(m)) return 0;
  for (long i = 0; i < m->S * n; i++) {
    const float action = drawn_from(m, (int)(i / n), uniforms[i])[2 * m->O];
    if (!(action >= 0 && action < (float)A)) return 0;
  }
  return 1;
}
