// A2C in C: what backpropagate() and update() of a2c.py say, seed by seed.
//
// S seeds, M samples, O observation size, D components of a continuous action, P parameters. Python
// calls the functions at the ends, with the structs before them (manyseeds/kernels/binding.py).
#include "actor_critic.h"
#include "distributions.h"
#include "optim.h"
#include "statistics.h"

// ---- The loss of a batch -------------------------------------------------------------------

typedef struct {
  int S, M, O, normalized;                 // normalized: advantages
  const policy *policy;                    // and the value function: the second network
  const float *obs;                        // [S, M, O]
  const void *actions;                     // int64 [S, M], or floats with D components each
  const float *advantages, *returns;       // [S, M]
  const float *value_coef, *entropy_coef;  // [S]
} a2c_batch;

// Whether all actions are some.
static int is_valid(const a2c_batch *b) {
  const policy *p = b->policy;
  return p->continuous || are_actions((long)b->S * b->M, p->networks->columns[0], b->actions);
}

// -mean(log pi A) and its gradient by log-probability.
static float policy_loss(long M, const float *logprobs, const float *advantages, float shift,
                         float scale, float *gradient) {
  double total = 0;
  for (long i = 0; i < M; i++) {
    const float advantage = (advantages[i] - shift) * scale;
    total += logprobs[i] * advantage;
    gradient[i] = -advantage / (float)M;
  }
  return (float)(-total / (double)M);
}

// Floats of scratch that the next function needs.
static long gradient_scratch(const a2c_batch *b) {
  return floats_of((long)b->M * b->O) + policy_scratch(b->policy);
}

// The gradients of seed s [P], and the terms of its loss.
static void gradient(const a2c_batch *b, int s, actor_critic *w, float *gradients,
                     float *of_policy, float *of_value, float *scratch) {
  const policy *p = b->policy;
  const long M = b->M, first = s * M;
  const void *actions = actions_at(p, b->actions, first);
  float *features = take_floats(&scratch, M * b->O), shift = 0, scale = 1;
  features_of(p, s, M, b->obs + first * b->O, features);
  actor_critic_forward(p, s, M, features, actions, w, scratch);
  if (b->normalized && M > 1) normalizer_of(M, b->advantages + first, &shift, &scale);
  *of_policy =
      policy_loss(M, w->policy.logprobs, b->advantages + first, shift, scale, w->of_logprobs);
  *of_value = squared_error(M, w->values, b->returns + first, b->value_coef[s], w->of_values);
  actor_critic_backward(p, s, M, features, actions, w, b->entropy_coef[s], gradients, scratch);
}

struct a2c_gradient {
  int S, M, P, threads;
  const a2c_batch *batch;
  float *gradients;                 // [S, P], 0 where nothing is written
  float *policy_loss, *value_loss;  // [S]
  float *entropies, *logprobs;      // [S, M]
};

static void gradient_of_seed(const void *given, int s, float *scratch) {
  const struct a2c_gradient *x = given;
  const long M = x->M;
  actor_critic w = actor_critic_in(x->batch->policy, M, &scratch);
  gradient(x->batch, s, &w, x->gradients + (long)s * x->P, x->policy_loss + s, x->value_loss + s,
           scratch);
  memcpy(x->entropies + s * M, w.policy.entropies, sizeof(float) * M);
  memcpy(x->logprobs + s * M, w.policy.logprobs, sizeof(float) * M);
}

int a2c_gradient(const struct a2c_gradient *x) {
  if (!is_valid(x->batch)) return 2;
  const long size = actor_critic_size(x->batch->policy, x->M) + gradient_scratch(x->batch);
  return for_each(x->S, x->threads, size, gradient_of_seed, x);
}

// ---- A step on it --------------------------------------------------------------------------

enum { POLICY_LOSS, VALUE_LOSS, ENTROPY, EXPLAINED_VARIANCE };

struct a2c_update {
  int S, M, P, threads;
  const a2c_batch *batch;
  const optimizer *optimizer;
  const float *values;  // [S, M], of the rollout
  float *metrics;       // [4, S]
};

static void update_of_seed(const void *given, int s, float *scratch) {
  const struct a2c_update *x = given;
  const long M = x->M, S = x->S;
  float *gradients = take_floats(&scratch, x->P), *metrics = x->metrics + s;
  actor_critic w = actor_critic_in(x->batch->policy, M, &scratch);
  memset(gradients, 0, sizeof(float) * x->P);
  gradient(x->batch, s, &w, gradients, metrics + POLICY_LOSS * S, metrics + VALUE_LOSS * S,
           scratch);
  optimizer_step(x->optimizer, s, gradients);
  metrics[ENTROPY * S] = (float)mean_of(M, w.policy.entropies);
  metrics[EXPLAINED_VARIANCE * S] =
      explained_variance_of(M, x->values + s * M, x->batch->returns + s * M);
}

int a2c_update(const struct a2c_update *x) {
  if (!is_valid(x->batch)) return 2;
  const long size = actor_critic_size(x->batch->policy, x->M) + gradient_scratch(x->batch);
  return for_each(x->S, x->threads, size + floats_of(x->P), update_of_seed, x);
}
