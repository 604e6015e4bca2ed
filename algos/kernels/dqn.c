// DQN in C: what Replay.add() and update() of dqn.py say, seed by seed.
//
// S seeds, C transitions in the memory of each, M per gradient step, O observation size, A actions. A
// transition is a row of W = 2 O + 3 floats: obs, next_obs, action, reward, terminated.
#include <math.h>

#include "mlp.h"
#include "optim.h"
#include "parallel.h"

// ---- The memory ----------------------------------------------------------------------------

// Stores n transitions per seed over the oldest ones.
struct dqn_add {
  int S, n, O, C, threads;
  const int64_t *added;            // [1], transitions per seed before
  const float *obs, *next_obs;     // [S, n, O]
  const int64_t *actions;          // [S, n]
  const float *rewards;            // [S, n]
  const unsigned char *terminated;  // [S, n]
  float *rows;                     // [S, C, 2 * O + 3]
};

static void add_to_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct dqn_add *x = given;
  const long O = x->O, W = 2 * O + 3;
  for (long k = 0, i = s * (long)x->n; k < x->n; k++, i++) {
    float *row = x->rows + (s * (long)x->C + (*x->added + k) % x->C) * W;
    memcpy(row, x->obs + i * O, sizeof(float) * O);
    memcpy(row + O, x->next_obs + i * O, sizeof(float) * O);
    row[2 * O] = (float)x->actions[i];
    row[2 * O + 1] = x->rewards[i];
    row[2 * O + 2] = x->terminated[i];
  }
}

int dqn_add(const struct dqn_add *x) { return for_each(x->S, x->threads, 0, add_to_seed, x); }

// ---- Gradient steps ------------------------------------------------------------------------

enum { TD_LOSS, Q_VALUES };

struct dqn_update {
  int S, G, M, O, C, P, huber, threads;  // huber: with a threshold of 1; otherwise the square
  const networks *net, *target;
  const optimizer *optimizer;
  const int64_t *added;  // [1], transitions per seed so far
  const float *rows;     // [S, C, 2 * O + 3]
  const float *draws;    // [S, G, M], uniforms
  const float *gamma;    // [S]
  float *metrics;        // [2, S], of the last minibatch
};

// The largest of n numbers, or NaN.
static float most_of(int n, const float *x) {
  float most = x[0];
  for (int i = 1; i < n; i++)
    if (x[i] > most || x[i] != x[i]) most = x[i];
  return most;
}

static void update_seed(const void *given, int s, float *scratch) {
  const struct dqn_update *x = given;
  const networks *m = x->net;
  const long M = x->M, O = x->O, W = 2 * O + 3, A = m->columns[0];
  const long size = *x->added < x->C ? *x->added : x->C;
  float *obs = take_floats(&scratch, M * O), *next_obs = take_floats(&scratch, M * O);
  float *hidden = take_floats(&scratch, M * width_of_hidden(m)), *q = take_floats(&scratch, M * A);
  float *of_q = take_floats(&scratch, M * A), *next_q = take_floats(&scratch, M * A);
  float *gradients = take_floats(&scratch, x->P), *to[2 * m->layers];
  const float **chosen = (const float **)take_floats(&scratch, 2 * M);  // rows of the memory
  memset(gradients, 0, sizeof(float) * x->P);
  gradients_in(m, 0, gradients, to);
  double loss = 0, values = 0;
  for (int g = 0; g < x->G; g++) {
    const float *uniforms = x->draws + ((long)s * x->G + g) * M;
    for (long i = 0; i < M; i++) {
      long index = (long)(uniforms[i] * (float)size);
      if (index >= size) index = size - 1;  // u * size may round up
      chosen[i] = x->rows + (s * (long)x->C + index) * W;
      memcpy(obs + i * O, chosen[i], sizeof(float) * O);
      memcpy(next_obs + i * O, chosen[i] + O, sizeof(float) * O);
    }
    prepare_forward(x->target, s, 0, scratch);
    network_forward(x->target, s, 0, (int)M, next_obs, 0, scratch, next_q);
    prepare_forward(m, s, 0, scratch);
    network_forward(m, s, 0, (int)M, obs, hidden, scratch, q);
    memset(of_q, 0, sizeof(float) * M * A);
    loss = values = 0;
    for (long i = 0; i < M; i++) {
      const float *scalars = chosen[i] + 2 * O;
      const float most = most_of((int)A, next_q + i * A);
      const float following = x->gamma[s] * most * (scalars[2] == 0);  // NaN stays
      const long action = i * A + (long)scalars[0];
      const float error = q[action] - (scalars[1] + following), magnitude = fabsf(error);
      float slope = 2 * error;
      if (x->huber && magnitude >= 1) slope = copysignf(1, error);
      else if (x->huber) slope = error;  // NaN, too
      loss += !x->huber        ? error * error
              : magnitude < 1 ? 0.5f * error * error
                               : magnitude - 0.5f;
      values += q[action];
      of_q[action] = slope / (float)M;
    }
    network_backward(m, s, 0, (int)M, obs, hidden, of_q, to, scratch);
    optimizer_step(x->optimizer, s, gradients);
  }
  x->metrics[TD_LOSS * x->S + s] = (float)(loss / (double)M);
  x->metrics[Q_VALUES * x->S + s] = (float)(values / (double)M);
}

int dqn_update(const struct dqn_update *x) {
  const networks *m = x->net;
  const long M = x->M, A = m->columns[0];
  const long forward = forward_scratch(m), backward = backward_scratch(m);
  const long size = 2 * floats_of(M * x->O) + floats_of(M * width_of_hidden(m)) +
                    3 * floats_of(M * A) + floats_of(x->P) + floats_of(2 * M);
  return for_each(x->S, x->threads, size + (forward > backward ? forward : backward), update_seed, x);
}

// ---- A round -------------------------------------------------------------------------------

struct rollout;  // of manyseeds/kernels/rollout.c
int rollout(const struct rollout *x);
struct episode_means;  // of manyseeds/kernels/scan.c
int episode_means(const struct episode_means *x);

// F steps of N environments, and an update: each part works on what the one before has written.
struct dqn_round {
  int S, F, N;
  const struct rollout *rollout;
  const struct dqn_add *add;
  const struct episode_means *episodes;
  const struct dqn_update *update;
  const unsigned char *terminated, *truncated;  // [S, F, N]
  unsigned char *done;                          // [S, F, N]
  int64_t *added;                               // [1], transitions per seed
};

int dqn_round(const struct dqn_round *x) {
  int failed = rollout(x->rollout);
  if (failed || (failed = dqn_add(x->add))) return failed;
  *x->added += (long)x->F * x->N;
  for (long i = 0; i < (long)x->S * x->F * x->N; i++) x->done[i] = x->terminated[i] | x->truncated[i];
  if ((failed = episode_means(x->episodes))) return failed;
  return dqn_update(x->update);
}
