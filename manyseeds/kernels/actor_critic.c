// A policy and a value function of a seed: what they know of samples, and their gradients.
#include "actor_critic.h"

#include "distributions.h"
#include "scan.h"

long actor_critic_size(const policy *p, long M) {
  return evaluated_size(p, M) + floats_of(M * width_of_hidden(p->networks)) + 4 * floats_of(M);
}

actor_critic actor_critic_in(const policy *p, long M, float **scratch) {
  actor_critic w;
  w.policy = evaluated_in(p, M, scratch);
  w.hidden = take_floats(scratch, M * width_of_hidden(p->networks));
  w.values = take_floats(scratch, M);
  w.of_logprobs = take_floats(scratch, M);
  w.of_values = take_floats(scratch, M);
  w.of_entropies = take_floats(scratch, M);
  return w;
}

void actor_critic_forward(const policy *p, int s, long M, const float *x, const void *actions,
                          actor_critic *w, float *scratch) {
  policy_forward(p, s, M, x, actions, &w->policy, scratch);
  value_forward(p->networks, s, 1, M, x, w->hidden, w->values, scratch);
}

void actor_critic_backward(const policy *p, int s, long M, const float *x, const void *actions,
                           actor_critic *w, float entropy_coef, float *gradients, float *scratch) {
  for (long i = 0; i < M; i++) w->of_entropies[i] = -entropy_coef / (float)M;
  policy_backward(p, s, M, x, actions, &w->policy, w->of_logprobs,
                  entropy_coef != 0 ? w->of_entropies : 0, gradients, scratch);
  float *to[2 * p->networks->layers];
  gradients_in(p->networks, 1, gradients, to);
  network_backward(p->networks, s, 1, (int)M, x, w->hidden, w->of_values, to, scratch);
}

float squared_error(long M, const float *values, const float *targets, float coef,
                    float *gradient) {
  double total = 0;
  for (long i = 0; i < M; i++) {
    const float error = values[i] - targets[i];
    total += error * error;
    gradient[i] = coef * (2 * error / (float)M);
  }
  return (float)(total / (double)M);
}

// ---- The samples of a rollout --------------------------------------------------------------

struct estimate {
  int S, T, N, O, threads;
  int n_steps;                        // of n-step returns; 0: GAE
  const policy *policy;
  const networks *critic;             // V
  int value;                          // its number among the networks of a seed
  const float *obs, *next_obs;        // [S, T, N, O]
  const void *actions;                // int64 [S, T, N], or floats with D components each
  const float *rewards;               // [S, T, N]
  const unsigned char *terminated, *truncated;  // [S, T, N]
  const float *gamma, *gae_lambda;    // [S]
  float *logprobs;                    // [S, T, N]; null: not asked for
  float *values, *advantages;         // [S, T, N]
};

static void estimate_seed(const void *given, int s, float *scratch) {
  const struct estimate *x = given;
  const policy *p = x->policy;
  const long T = x->T, N = x->N, O = x->O, B = T * N, first = s * B;
  const unsigned char *terminated = x->terminated + first, *truncated = x->truncated + first;
  float *features = take_floats(&scratch, B * O), *last = take_floats(&scratch, B * O);
  float *of_last = take_floats(&scratch, B), *next_values = take_floats(&scratch, B);
  features_of(p, s, B, x->obs + first * O, features);
  if (x->logprobs) {
    float *rest = scratch;
    evaluated e = evaluated_in(p, B, &rest);
    policy_forward(p, s, B, features, actions_at(p, x->actions, first), &e, rest);
    memcpy(x->logprobs + first, e.logprobs, sizeof(float) * B);
  }
  float *values = x->values + first;
  value_forward(x->critic, s, x->value, B, features, 0, values, scratch);

  // V of a successor is that of the next step, but where an episode or the rollout ends.
  long count = 0;
  for (long i = 0; i < B; i++)
    if (i >= B - N || terminated[i] || truncated[i])
      features_of(p, s, 1, x->next_obs + (first + i) * O, last + count++ * O);
  value_forward(x->critic, s, x->value, count, last, 0, of_last, scratch);
  count = 0;
  for (long i = 0; i < B; i++) {
    const int is_last = i >= B - N || terminated[i] || truncated[i];
    next_values[i] = is_last ? of_last[count++] : values[i + N];
  }
  if (x->n_steps > 0)
    n_step_advantages_of(T, N, x->rewards + first, values, next_values, terminated, truncated,
                         x->gamma[s], x->n_steps, x->advantages + first);
  else
    advantages_of(T, N, x->rewards + first, values, next_values, terminated, truncated,
                  x->gamma[s], x->gae_lambda[s], x->advantages + first);
}

int estimate(const struct estimate *x) {
  const long B = (long)x->T * x->N, A = x->policy->networks->columns[0];
  if (!x->policy->continuous && !are_actions(x->S * B, (int)A, x->actions)) return 2;
  const long size = 2 * floats_of(B * x->O) + 2 * floats_of(B) + evaluated_size(x->policy, B);
  return for_each(x->S, x->threads, size + policy_scratch(x->policy), estimate_seed, x);
}
