// PQN in C: what estimate() and update() of pqn.py say, seed by seed.
//
// S seeds, T steps of N environments, B = T N samples, M per gradient step, O observation size, A
// actions, P parameters. Python calls the functions at the ends of the sections, with the structs
// before them (manyseeds/kernels/binding.py).
#include "distributions.h"
#include "mlp.h"
#include "optim.h"
#include "parallel.h"
#include "scan.h"

// ---- The returns of a rollout --------------------------------------------------------------

struct pqn_estimate {
  int S, T, N, O, threads;
  const networks *net;
  const float *next_obs;                          // [S, T, N, O], the true successors
  const float *rewards;                           // [S, T, N]
  const unsigned char *terminated, *truncated;    // [S, T, N]
  const float *reward_scale, *gamma, *q_lambda;   // [S]
  float *returns;                                 // [S, T, N]
};

// The largest of n numbers, or NaN.
static float most_of(int n, const float *x) {
  float most = x[0];
  for (int i = 1; i < n; i++)
    if (x[i] > most || x[i] != x[i]) most = x[i];
  return most;
}

static void estimate_of_seed(const void *given, int s, float *scratch) {
  const struct pqn_estimate *x = given;
  const int A = x->net->columns[0];
  const long N = x->N, B = x->T * N, first = s * B;
  float *q = take_floats(&scratch, B * A), *returns = x->returns + first;
  const unsigned char *terminated = x->terminated + first, *truncated = x->truncated + first;
  prepare_forward(x->net, s, 0, scratch);
  network_forward(x->net, s, 0, (int)B, x->next_obs + first * x->O, 0, scratch, q);
  for (long i = B - 1; i >= 0; i--) {
    const int goes_on = i + N < B && !terminated[i] && !truncated[i];
    const float decay = goes_on ? x->q_lambda[s] : 0;
    const float bootstrap = (1 - decay) * most_of(A, q + i * A) * !terminated[i];  // NaN stays
    const float after = goes_on ? x->gamma[s] * decay * returns[i + N] : 0;
    returns[i] = x->reward_scale[s] * x->rewards[first + i] + x->gamma[s] * bootstrap + after;
  }
}

int pqn_estimate(const struct pqn_estimate *x) {
  const long size = floats_of((long)x->T * x->N * x->net->columns[0]) + forward_scratch(x->net);
  return for_each(x->S, x->threads, size, estimate_of_seed, x);
}

// ---- All epochs over a rollout -------------------------------------------------------------

enum { TD_LOSS, Q_VALUES };

struct pqn_update {
  int S, B, M, O, P, epochs, threads;
  const networks *net;
  const optimizer *optimizer;
  const float *obs;         // [S, B, O]
  const int64_t *actions;   // [S, B]
  const float *returns;     // [S, B]
  const float *shuffle;     // [S, epochs, B], keys of each epoch's order
  float *metrics;           // [2, S], of the last minibatch
};

static void update_of_seed(const void *given, int s, float *scratch) {
  const struct pqn_update *x = given;
  const networks *m = x->net;
  const long B = x->B, M = x->M, O = x->O, A = m->columns[0], first = s * B;
  int64_t *order = (int64_t *)take_floats(&scratch, 2 * B);
  float *sorting = take_floats(&scratch, order_scratch(B)), *obs = take_floats(&scratch, M * O);
  float *hidden = take_floats(&scratch, M * width_of_hidden(m)), *q = take_floats(&scratch, M * A);
  float *of_q = take_floats(&scratch, M * A), *gradients = take_floats(&scratch, x->P);
  float *to[parameters_of(m)];
  memset(gradients, 0, sizeof(float) * x->P);
  gradients_in(m, 0, gradients, to);
  double loss = 0, values = 0;
  for (int epoch = 0; epoch < x->epochs; epoch++) {
    order_of_keys(B, x->shuffle + ((long)s * x->epochs + epoch) * B, order, sorting);
    for (long start = 0; start < B; start += M) {
      const int64_t *chosen = order + start;
      for (long i = 0; i < M; i++)
        memcpy(obs + i * O, x->obs + (first + chosen[i]) * O, sizeof(float) * O);
      prepare_forward(m, s, 0, scratch);
      network_forward(m, s, 0, (int)M, obs, hidden, scratch, q);
      memset(of_q, 0, sizeof(float) * M * A);
      loss = values = 0;
      for (long i = 0; i < M; i++) {
        const long action = i * A + x->actions[first + chosen[i]];
        const float error = q[action] - x->returns[first + chosen[i]];
        loss += error * error;
        values += q[action];
        of_q[action] = 2 * error / (float)M;
      }
      network_backward(m, s, 0, (int)M, obs, hidden, of_q, to, scratch);
      optimizer_step(x->optimizer, s, gradients);
    }
  }
  x->metrics[TD_LOSS * x->S + s] = (float)(loss / (double)M);
  x->metrics[Q_VALUES * x->S + s] = (float)(values / (double)M);
}

int pqn_update(const struct pqn_update *x) {
  const networks *m = x->net;
  const long B = x->B, M = x->M, A = m->columns[0];
  if (!are_actions((long)x->S * B, (int)A, x->actions)) return 2;
  const long forward = forward_scratch(m), backward = backward_scratch(m);
  const long size = floats_of(2 * B) + floats_of(order_scratch(B)) + floats_of(M * x->O) +
                    floats_of(M * width_of_hidden(m)) + 2 * floats_of(M * A) + floats_of(x->P);
  return for_each(x->S, x->threads, size + (forward > backward ? forward : backward),
                  update_of_seed, x);
}
