// What is stored in the replay memory of off-policy algorithms: Replay.add() of dqn.py and others.
#include "memory.h"

// Stores n transitions per seed over the oldest ones.
struct memory_add {
  int S, n, O, D, threads;
  const memory *memory;
  const float *obs, *next_obs;     // [S, n, O]
  const float *actions;            // [S, n, D]; null: numbers
  const int64_t *numbers;          // [S, n], of discrete actions; null
  const float *rewards;            // [S, n]
  const unsigned char *terminated;  // [S, n]
};

static void add_to_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct memory_add *x = given;
  const memory *m = x->memory;
  const long O = x->O, D = x->D, W = width_of_row(m);
  for (long k = 0, i = s * (long)x->n; k < x->n; k++, i++) {
    float *row = m->rows + (s * (long)m->C + (*m->added + k) % m->C) * W;
    memcpy(row, x->obs + i * O, sizeof(float) * O);
    memcpy(row + O, x->next_obs + i * O, sizeof(float) * O);
    if (x->actions) memcpy(row + 2 * O, x->actions + i * D, sizeof(float) * D);
    else row[2 * O] = (float)x->numbers[i];
    row[W - 2] = x->rewards[i];
    row[W - 1] = x->terminated[i];
  }
}

int memory_add(const struct memory_add *x) {
  return for_each(x->S, x->threads, 0, add_to_seed, x);
}
