// REINFORCE in C: what policy_gradient(), fit() and update() of reinforce.py say, seed by seed.
//
// S seeds, N episodes of at most L steps, B = L N samples, M of them in a minibatch, O features, A
// actions or D components of one, P and Q parameters of a policy and a critic.
#include <math.h>

#include "distributions.h"
#include "optim.h"
#include "policy.h"
#include "statistics.h"

// The samples of an update, of which those after the ends of episodes are never read.
typedef struct {
  int S, N, O, A, continuous;
  long B;
  const float *features;       // [S, B, O]
  const void *actions;         // int64 [S, B], or floats with D components each
  const unsigned char *alive;  // [S, B]
  const float *returns;        // [S, B]
} reinforce_batch;

static int is_valid(const reinforce_batch *b) {
  return b->continuous || are_actions(b->S * b->B, b->A, b->actions);
}

// Where the steps that seed s took stand among its samples, in their order; returns how many.
static long steps_taken(const reinforce_batch *b, int s, int64_t *taken) {
  long count = 0;
  for (long i = 0; i < b->B; i++)
    if (b->alive[s * b->B + i]) taken[count++] = i;
  return count;
}

static long larger(long a, long b) { return a > b ? a : b; }

static long critic_scratch(const networks *c) {
  return larger(forward_scratch(c), backward_scratch(c));
}

// ---- The critic ----------------------------------------------------------------------------

// Memory for M samples of a critic.
typedef struct {
  float *inputs;  // [M, I]
  float *hidden;
  float *values, *targets, *of_values;  // [M]
  int64_t *chosen;                      // [M]
} minibatch;

static long minibatch_size(const networks *c, long M) {
  return floats_of(M * c->sizes[0]) + floats_of(M * width_of_hidden(c)) + 3 * floats_of(M) +
         floats_of(2 * M);
}

static minibatch minibatch_in(const networks *c, long M, float **scratch) {
  minibatch m;
  m.inputs = take_floats(scratch, M * c->sizes[0]);
  m.hidden = take_floats(scratch, M * width_of_hidden(c));
  m.values = take_floats(scratch, M);
  m.targets = take_floats(scratch, M);
  m.of_values = take_floats(scratch, M);
  m.chosen = (int64_t *)take_floats(scratch, 2 * M);
  return m;
}

// What the critic sees of M samples: their features and, if it is Q, their actions.
static void inputs_of(const reinforce_batch *b, const networks *c, int s, long M,
                      const int64_t *chosen, float *inputs) {
  const long I = c->sizes[0], O = b->O;
  for (long i = 0; i < M; i++) {
    const long from = s * b->B + chosen[i];
    float *to = inputs + i * I;
    memcpy(to, b->features + from * O, sizeof(float) * O);
    if (I == O) continue;
    for (long k = 0; k < b->A; k++)
      to[O + k] = b->continuous ? ((const float *)b->actions)[from * b->A + k]
                                : (float)(((const int64_t *)b->actions)[from] == k);
  }
}

// Gradient steps on minibatches, drawn by uniforms [updates, M] from the steps that were taken.
// Returns the last one's mean squared error; NaN without any step.
static float fit(const reinforce_batch *b, const networks *c, const optimizer *o, int s, int learns,
                 long updates, long M, const float *draws, long count, const int64_t *taken,
                 minibatch *m, float *gradients, float *scratch) {
  if (!count) return NAN;
  double total = 0;
  // Of a seed that has ended only the last one's error is asked for.
  for (long u = learns ? 0 : updates - 1; u < updates; u++) {
    for (long i = 0; i < M; i++) {
      const long place = (long)(draws[u * M + i] * (float)count);
      m->chosen[i] = taken[place < count ? place : count - 1];
      m->targets[i] = b->returns[s * b->B + m->chosen[i]];
    }
    inputs_of(b, c, s, M, m->chosen, m->inputs);
    value_forward(c, s, 0, M, m->inputs, m->hidden, m->values, scratch);
    total = 0;
    for (long i = 0; i < M; i++) {
      const float error = m->values[i] - m->targets[i];
      total += error * error;
      m->of_values[i] = 2 * error / (float)M;
    }
    if (!learns) break;
    float *to[2 * c->layers];
    gradients_in(c, 0, gradients, to);
    network_backward(c, s, 0, (int)M, m->inputs, m->hidden, m->of_values, to, scratch);
    optimizer_step(o, s, gradients);
  }
  return (float)(total / (double)M);
}

struct reinforce_fit {
  int S, M, Q, updates, threads;
  const reinforce_batch *batch;
  const networks *critic;
  const optimizer *optimizer;
  const float *draws;           // [S, updates, M], uniforms
  const unsigned char *active;  // [S]
  float *value_loss;            // [S]
};

static void fit_seed(const void *given, int s, float *scratch) {
  const struct reinforce_fit *x = given;
  int64_t *taken = (int64_t *)take_floats(&scratch, 2 * x->batch->B);
  float *gradients = take_floats(&scratch, x->Q);
  minibatch m = minibatch_in(x->critic, x->M, &scratch);
  memset(gradients, 0, sizeof(float) * x->Q);
  const long count = steps_taken(x->batch, s, taken);
  x->value_loss[s] = fit(x->batch, x->critic, x->optimizer, s, x->active[s], x->updates, x->M,
                         x->draws + (long)s * x->updates * x->M, count, taken, &m, gradients,
                         scratch);
}

int reinforce_fit(const struct reinforce_fit *x) {
  if (!is_valid(x->batch)) return 2;
  const long size = floats_of(2 * x->batch->B) + floats_of(x->Q) + minibatch_size(x->critic, x->M);
  return for_each(x->S, x->threads, size + critic_scratch(x->critic), fit_seed, x);
}

// ---- The gradient of the policy ------------------------------------------------------------

enum { POLICY_LOSS, ENTROPY, GRAD_NORM, GRAD_VARIANCE, VALUE_LOSS };

// Memory for an episode of L steps, and its gradient.
typedef struct {
  evaluated policy;
  float *features;  // [L, O]
  void *actions;
  float *of_logprobs, *of_entropies;  // [L]
  float *gradients;                   // [P]
} episode;

static long episode_size(const policy *p, long L, long P) {
  return evaluated_size(p, L) + floats_of(L * p->O) + floats_of_actions(p, L) + 2 * floats_of(L) +
         floats_of(P);
}

static episode episode_in(const policy *p, long L, long P, float **scratch) {
  episode e;
  e.policy = evaluated_in(p, L, scratch);
  e.features = take_floats(scratch, L * p->O);
  e.actions = *scratch;
  *scratch += floats_of_actions(p, L);
  e.of_logprobs = take_floats(scratch, L);
  e.of_entropies = take_floats(scratch, L);
  e.gradients = take_floats(scratch, P);
  return e;
}

// Moves the mean [P] of n - 1 gradients on by the n-th (Welford, 1962); returns by how much that
// increases the sum of squared deviations from the mean.
static double move_mean(long P, long n, const float *gradient, float *mean) {
  vec squares[PARTS] = {0};
  const vec share = all(1 / (float)n);
  for (long i = 0; i < P; i += LANES)
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) {
      const vec x = load(gradient + i + p * WIDTH), before = load(mean + i + p * WIDTH);
      const vec after = plus_product(before, x - before, share);
      store(mean + i + p * WIDTH, after);
      squares[p] = plus_product(squares[p], x - before, x - after);
    }
  return sum_of(squares);
}

// The mean over episodes of each one's gradient [P], of -sum_t (weight_t log pi(a_t | s_t) +
// entropy_coef entropy_t). metrics: [GRAD_VARIANCE + 1, S].
static void gradient(const reinforce_batch *b, const policy *p, int s, const float *weights,
                     float entropy_coef, long P, episode *e, float *mean, float *metrics,
                     float *scratch) {
  const long N = b->N, first = s * b->B;
  double loss = 0, entropy = 0, squares = 0, steps = 0;
  memset(mean, 0, sizeof(float) * P);
  memset(e->gradients, 0, sizeof(float) * P);
  for (long n = 0; n < N; n++) {
    long T = 0;
    for (long i = n; i < b->B; i += N) {
      if (!b->alive[first + i]) continue;
      memcpy(e->features + T * b->O, b->features + (first + i) * b->O, sizeof(float) * b->O);
      copy_action(p, b->actions, first + i, e->actions, T);
      e->of_logprobs[T] = -weights[i];
      e->of_entropies[T++] = -entropy_coef;
    }
    policy_forward(p, s, T, e->features, e->actions, &e->policy, scratch);
    for (long t = 0; t < T; t++) {
      loss += e->of_logprobs[t] * e->policy.logprobs[t];
      entropy += e->policy.entropies[t];
    }
    policy_backward(p, s, T, e->features, e->actions, &e->policy, e->of_logprobs,
                    entropy_coef != 0 ? e->of_entropies : 0, e->gradients, scratch);
    squares += move_mean(P, n + 1, e->gradients, mean);
    steps += (double)T;
  }
  metrics[POLICY_LOSS * b->S + s] = (float)(loss / (double)N);
  metrics[ENTROPY * b->S + s] = (float)(entropy / steps);
  metrics[GRAD_NORM * b->S + s] = norm_of(P, mean);
  metrics[GRAD_VARIANCE * b->S + s] = (float)(squares / (double)(N - 1) / (double)N);
}

struct reinforce_gradient {
  int S, threads;
  long B, P;
  const reinforce_batch *batch;
  const policy *policy;
  const float *weights;       // [S, B]
  const float *entropy_coef;  // [S]
  float *gradients;           // [S, P]
  float *metrics;             // [4, S]
};

static void gradient_of_seed(const void *given, int s, float *scratch) {
  const struct reinforce_gradient *x = given;
  episode e = episode_in(x->policy, x->B / x->batch->N, x->P, &scratch);
  gradient(x->batch, x->policy, s, x->weights + s * x->B, x->entropy_coef[s], x->P, &e,
           x->gradients + s * x->P, x->metrics, scratch);
}

int reinforce_gradient(const struct reinforce_gradient *x) {
  if (!is_valid(x->batch)) return 2;
  const long size = episode_size(x->policy, x->B / x->batch->N, x->P);
  return for_each(x->S, x->threads, size + policy_scratch(x->policy), gradient_of_seed, x);
}

// ---- The whole update ----------------------------------------------------------------------

enum { TOTAL_RETURN, RETURN_TO_GO, BASELINE, Q_VALUE };

struct reinforce_update {
  int S, M, Q, updates, weight, normalized, threads;
  long P;
  const reinforce_batch *batch;
  const policy *policy;
  const optimizer *optimizer;
  const networks *critic;             // null: none
  const optimizer *critic_optimizer;  // null: no critic
  const float *entropy_coef;          // [S]
  const float *draws;                 // [S, updates, M], uniforms
  const unsigned char *active;        // [S]
  float *metrics;                     // [5, S]
};

// Phi of the steps that were taken.
static void weights_of(const struct reinforce_update *x, int s, long count, const int64_t *taken,
                       minibatch *m, float *packed, float *weights, float *scratch) {
  const reinforce_batch *b = x->batch;
  const float *returns = b->returns + s * b->B;
  for (long i = 0; i < count; i++)
    packed[i] = returns[x->weight == TOTAL_RETURN ? taken[i] % b->N : taken[i]];
  for (long start = 0; x->critic && start < count; start += x->M) {
    const long M = count - start < x->M ? count - start : x->M;
    inputs_of(b, x->critic, s, M, taken + start, m->inputs);
    value_forward(x->critic, s, 0, M, m->inputs, 0, m->values, scratch);
    for (long i = 0; i < M; i++)
      packed[start + i] = x->weight == Q_VALUE ? m->values[i] : packed[start + i] - m->values[i];
  }
  float shift = 0, scale = 1;
  if (x->normalized && count > 1) normalizer_of(count, packed, &shift, &scale);
  else if (x->normalized && count) shift = packed[0];  // a single one is its own mean
  for (long i = 0; i < count; i++) weights[taken[i]] = (packed[i] - shift) * scale;
}

static long update_size(const struct reinforce_update *x) {
  const reinforce_batch *b = x->batch;
  const long size = floats_of(2 * b->B) + 2 * floats_of(b->B) + floats_of(x->P) +
                    episode_size(x->policy, b->B / b->N, x->P);
  const long actor = policy_scratch(x->policy);
  if (!x->critic) return size + actor;
  return size + floats_of(x->Q) + minibatch_size(x->critic, x->M) +
         larger(actor, critic_scratch(x->critic));
}

static void update_of_seed(const void *given, int s, float *scratch) {
  const struct reinforce_update *x = given;
  const reinforce_batch *b = x->batch;
  int64_t *taken = (int64_t *)take_floats(&scratch, 2 * b->B);
  float *packed = take_floats(&scratch, b->B), *weights = take_floats(&scratch, b->B);
  float *mean = take_floats(&scratch, x->P), *of_critic = 0;
  episode e = episode_in(x->policy, b->B / b->N, x->P, &scratch);
  minibatch m = {0};
  if (x->critic) {
    of_critic = take_floats(&scratch, x->Q);
    memset(of_critic, 0, sizeof(float) * x->Q);
    m = minibatch_in(x->critic, x->M, &scratch);
  }
  const long count = steps_taken(b, s, taken);
  weights_of(x, s, count, taken, &m, packed, weights, scratch);
  gradient(b, x->policy, s, weights, x->entropy_coef[s], x->P, &e, mean, x->metrics, scratch);
  if (x->active[s]) optimizer_step(x->optimizer, s, mean);
  // After the policy's step: V and Q must not have seen the episodes that they weight.
  if (x->critic)
    x->metrics[VALUE_LOSS * x->S + s] =
        fit(b, x->critic, x->critic_optimizer, s, x->active[s], x->updates, x->M,
            x->draws + (long)s * x->updates * x->M, count, taken, &m, of_critic, scratch);
}

int reinforce_update(const struct reinforce_update *x) {
  if (!is_valid(x->batch)) return 2;
  return for_each(x->S, x->threads, update_size(x), update_of_seed, x);
}
