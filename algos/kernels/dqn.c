// DQN in C: what update() of dqn.py says, seed by seed, and a round.
//
// S seeds, M transitions per gradient step, O observation size, A actions.
#include <math.h>

#include "memory.h"
#include "mlp.h"
#include "optim.h"
#include "parallel.h"

// ---- Gradient steps ------------------------------------------------------------------------

enum { TD_LOSS, Q_VALUES };

struct dqn_update {
  int S, G, M, P, huber, threads;  // huber: with a threshold of 1; otherwise the square
  const networks *net, *target;
  const optimizer *optimizer;
  const memory *memory;
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
  const long M = x->M, O = x->memory->O, A = m->columns[0];
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
      chosen[i] = drawn_from(x->memory, s, uniforms[i]);
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
  if (!holds_actions(x->memory, (long)x->G * M, x->draws, (int)A)) return 2;
  const long forward = forward_scratch(m), backward = backward_scratch(m);
  const long size = 2 * floats_of(M * x->memory->O) + floats_of(M * width_of_hidden(m)) +
                    3 * floats_of(M * A) + floats_of(x->P) + floats_of(2 * M);
  return for_each(x->S, x->threads, size + (forward > backward ? forward : backward), update_seed, x);
}

// ---- A round -------------------------------------------------------------------------------

struct memory_add;  // of manyseeds/kernels/memory.c
int memory_add(const struct memory_add *x);
struct rollout;  // of manyseeds/kernels/rollout.c
int rollout(const struct rollout *x);
struct episode_means;  // of manyseeds/kernels/scan.c
int episode_means(const struct episode_means *x);

// F steps of N environments, and an update: each part works on what the one before has written.
struct dqn_round {
  int S, F, N;
  const struct rollout *rollout;
  const struct memory_add *add;
  const struct episode_means *episodes;
  const struct dqn_update *update;
  const unsigned char *terminated, *truncated;  // [S, F, N]
  unsigned char *done;                          // [S, F, N]
  int64_t *added;                               // [1], transitions per seed
};

int dqn_round(const struct dqn_round *x) {
  int failed = rollout(x->rollout);
  if (failed || (failed = memory_add(x->add))) return failed;
  *x->added += (long)x->F * x->N;
  for (long i = 0; i < (long)x->S * x->F * x->N; i++) x->done[i] = x->terminated[i] | x->truncated[i];
  if ((failed = episode_means(x->episodes))) return failed;
  return dqn_update(x->update);
}
