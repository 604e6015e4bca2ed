// PPO in C: what estimate(), backpropagate() and update() of ppo.py say, seed by seed.
//
// S seeds, T steps of N environments, B = T N samples, M per gradient step, O observation size, D
// components of a continuous action, P parameters. Python calls the functions at the ends of the
// sections, with the structs before them (manyseeds/kernels/binding.py).
#include <math.h>

#include "distributions.h"
#include "functions.h"
#include "optim.h"
#include "policy.h"
#include "scan.h"
#include "statistics.h"

// ---- The samples of a rollout --------------------------------------------------------------

struct ppo_estimate {
  int S, T, N, O, threads;
  const policy *policy;
  const float *obs, *next_obs;        // [S, T, N, O]
  const void *actions;                // int64 [S, T, N], or floats with D components each
  const float *rewards;               // [S, T, N]
  const unsigned char *terminated, *truncated;  // [S, T, N]
  const float *gamma, *gae_lambda;    // [S]
  float *logprobs, *values, *advantages;  // [S, T, N]
};

static void estimate_seed(const void *given, int s, float *scratch) {
  const struct ppo_estimate *x = given;
  const policy *p = x->policy;
  const long T = x->T, N = x->N, O = x->O, B = T * N, first = s * B;
  const unsigned char *terminated = x->terminated + first, *truncated = x->truncated + first;
  float *features = take_floats(&scratch, B * O), *last = take_floats(&scratch, B * O);
  float *of_last = take_floats(&scratch, B), *next_values = take_floats(&scratch, B);
  evaluated e = evaluated_in(p, B, &scratch);
  features_of(p, s, B, x->obs + first * O, features);
  policy_forward(p, s, B, features, actions_at(p, x->actions, first), &e, scratch);
  memcpy(x->logprobs + first, e.logprobs, sizeof(float) * B);
  float *values = x->values + first;
  value_forward(p->networks, s, 1, B, features, 0, values, scratch);

  // V of a successor is that of the next step, but where an episode or the rollout ends.
  long count = 0;
  for (long i = 0; i < B; i++)
    if (i >= B - N || terminated[i] || truncated[i])
      features_of(p, s, 1, x->next_obs + (first + i) * O, last + count++ * O);
  value_forward(p->networks, s, 1, count, last, 0, of_last, scratch);
  count = 0;
  for (long i = 0; i < B; i++) {
    const int is_last = i >= B - N || terminated[i] || truncated[i];
    next_values[i] = is_last ? of_last[count++] : values[i + N];
  }
  advantages_of(T, N, x->rewards + first, values, next_values, terminated, truncated, x->gamma[s],
                x->gae_lambda[s], x->advantages + first);
}

int ppo_estimate(const struct ppo_estimate *x) {
  const long B = (long)x->T * x->N, A = x->policy->networks->columns[0];
  if (!x->policy->continuous && !are_actions(x->S * B, (int)A, x->actions)) return 2;
  const long size = 2 * floats_of(B * x->O) + 2 * floats_of(B) + evaluated_size(x->policy, B);
  return for_each(x->S, x->threads, size + policy_scratch(x->policy), estimate_seed, x);
}

// ---- The loss of a minibatch ---------------------------------------------------------------

// What it is computed with, beside the samples.
typedef struct {
  int normalized;           // advantages
  const policy *policy;     // and the value function: the second network
  // [S] each; clip below 0: do not clip, value_clip 0: do not
  const float *clip, *value_clip, *value_coef, *entropy_coef;
} settings;

// Samples of a seed.
typedef struct {
  float *features;     // [M, O]
  void *actions;       // int64 [M], or floats [M, D]
  float *logprobs, *values, *advantages, *returns;  // [M]
} samples;

// What the loss was made of.
typedef struct {
  float policy_loss, value_loss;
} terms;

// -mean(min(ratio A, clip(ratio, 1 - clip, 1 + clip) A)) and its gradient by log-probability.
static float policy_loss(long M, const float *ratios, const float *advantages, float shift,
                         float scale, float clip, float *gradient) {
  double total = 0;
  for (long i = 0; i < M; i++) {
    const float advantage = (advantages[i] - shift) * scale;
    const float ratio = ratios[i], gain = ratio * advantage;
    const float inside = ratio < 1 - clip ? 1 - clip : ratio > 1 + clip ? 1 + clip : ratio;
    const float cut = clip >= 0 ? inside * advantage : gain;
    const int is_cut = cut < gain;  // not so for NaN
    total += is_cut ? cut : gain;
    gradient[i] = is_cut ? 0 * ratio : -gain / (float)M;  // NaN where the ratio is infinite
  }
  return (float)(-total / (double)M);
}

// The mean squared error and its gradient, weighted; clip > 0: of the change since the rollout.
static float value_loss(long M, const float *values, const float *old_values, const float *returns,
                        float clip, float coef, float *gradient) {
  double total = 0;
  for (long i = 0; i < M; i++) {
    float value = values[i];
    const float change = value - old_values[i];
    const int is_cut = clip > 0 && (change < -clip || change > clip);
    if (is_cut) value = old_values[i] + (change < 0 ? -clip : clip);
    const float error = value - returns[i];
    total += error * error;
    gradient[i] = is_cut ? 0 : coef * (2 * error / (float)M);
  }
  return (float)(total / (double)M);
}

// Memory of a gradient of M samples.
typedef struct {
  evaluated policy;
  float *hidden, *values, *of_values, *of_entropies;
  float *ratios, *of_logprobs;
} workspace;

static long workspace_size(const policy *p, long M) {
  return evaluated_size(p, M) + floats_of(M * width_of_hidden(p->networks)) + 5 * floats_of(M) +
         policy_scratch(p);
}

static workspace workspace_in(const policy *p, long M, float **scratch) {
  workspace w;
  w.policy = evaluated_in(p, M, scratch);
  w.hidden = take_floats(scratch, M * width_of_hidden(p->networks));
  w.values = take_floats(scratch, M);
  w.of_values = take_floats(scratch, M);
  w.of_entropies = take_floats(scratch, M);
  w.ratios = take_floats(scratch, M);
  w.of_logprobs = take_floats(scratch, M);
  return w;
}

// The gradients of seed s [P] and the terms of the loss of M samples.
static terms gradient(const settings *c, int s, long M, const samples *b, workspace *w,
                      float *gradients, float *scratch) {
  const policy *p = c->policy;
  policy_forward(p, s, M, b->features, b->actions, &w->policy, scratch);
  value_forward(p->networks, s, 1, M, b->features, w->hidden, w->values, scratch);
  for (long i = 0; i < M; i++) w->ratios[i] = w->policy.logprobs[i] - b->logprobs[i];
  exp_of_all(M, w->ratios, w->ratios);
  float shift = 0, scale = 1;
  if (c->normalized && M > 1) normalizer_of(M, b->advantages, &shift, &scale);
  const terms found = {
      policy_loss(M, w->ratios, b->advantages, shift, scale, c->clip[s], w->of_logprobs),
      value_loss(M, w->values, b->values, b->returns, c->value_clip[s], c->value_coef[s],
                 w->of_values)};
  for (long i = 0; i < M; i++) w->of_entropies[i] = -c->entropy_coef[s] / (float)M;
  policy_backward(p, s, M, b->features, b->actions, &w->policy, w->of_logprobs,
                  c->entropy_coef[s] != 0 ? w->of_entropies : 0, gradients, scratch);
  float *to[2 * p->networks->layers];
  gradients_in(p->networks, 1, gradients, to);
  network_backward(p->networks, s, 1, (int)M, b->features, w->hidden, w->of_values, to, scratch);
  return found;
}

struct ppo_gradient {
  int S, M, O, P, threads, normalized;
  const policy *policy;
  const float *obs;               // [S, M, O]
  const void *actions;            // int64 [S, M], or floats with D components each
  const float *old_logprobs, *old_values, *advantages, *returns;  // [S, M]
  const float *clip, *value_clip, *value_coef, *entropy_coef;     // [S]
  float *gradients;               // [S, P], 0 where nothing is written
  float *policy_loss, *value_loss;  // [S]
  float *entropies, *logprobs;      // [S, M]
};

static void gradient_of_seed(const void *given, int s, float *scratch) {
  const struct ppo_gradient *x = given;
  const settings c = {x->normalized, x->policy,     x->clip,
                      x->value_clip, x->value_coef, x->entropy_coef};
  const long M = x->M, first = s * M;
  float *features = take_floats(&scratch, M * x->O);
  features_of(x->policy, s, M, x->obs + first * x->O, features);
  const samples b = {features, (void *)actions_at(x->policy, x->actions, first),
                     (float *)x->old_logprobs + first, (float *)x->old_values + first,
                     (float *)x->advantages + first, (float *)x->returns + first};
  workspace w = workspace_in(x->policy, M, &scratch);
  const terms t = gradient(&c, s, M, &b, &w, x->gradients + (long)s * x->P, scratch);
  x->policy_loss[s] = t.policy_loss;
  x->value_loss[s] = t.value_loss;
  memcpy(x->entropies + first, w.policy.entropies, sizeof(float) * M);
  memcpy(x->logprobs + first, w.policy.logprobs, sizeof(float) * M);
}

int ppo_gradient(const struct ppo_gradient *x) {
  const policy *p = x->policy;
  if (!p->continuous && !are_actions((long)x->S * x->M, p->networks->columns[0], x->actions))
    return 2;
  const long size = floats_of((long)x->M * x->O) + workspace_size(p, x->M);
  return for_each(x->S, x->threads, size, gradient_of_seed, x);
}

// ---- All epochs over a rollout -------------------------------------------------------------

enum { POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIPFRAC, EXPLAINED_VARIANCE, METRICS };

struct ppo_update {
  int S, B, M, O, P, epochs, threads, normalized;
  const policy *policy;
  const optimizer *optimizer;
  const float *obs;               // [S, B, O]
  const void *actions;            // int64 [S, B], or floats with D components each
  const float *logprobs, *values, *advantages, *returns;       // [S, B]
  const float *shuffle;           // [S, epochs, B], keys of each epoch's order
  const float *clip, *value_clip, *value_coef, *entropy_coef;  // [S]
  const float *target_kl;         // [S]; 0: no limit
  float *metrics;                 // [6, S]
};

// Copies the samples that indices [M] name.
static void gather(const struct ppo_update *x, int s, const int64_t *indices, const float *features,
                   samples *b) {
  const long M = x->M, O = x->O, first = (long)s * x->B;
  const long width = x->policy->networks->columns[0];
  for (long i = 0; i < M; i++) {
    const long from = indices[i];
    memcpy(b->features + i * O, features + from * O, sizeof(float) * O);
    if (x->policy->continuous)
      memcpy((float *)b->actions + i * width, (const float *)x->actions + (first + from) * width,
             sizeof(float) * width);
    else ((int64_t *)b->actions)[i] = ((const int64_t *)x->actions)[first + from];
    b->logprobs[i] = x->logprobs[first + from];
    b->values[i] = x->values[first + from];
    b->advantages[i] = x->advantages[first + from];
    b->returns[i] = x->returns[first + from];
  }
}

// The mean of ratio - 1 - log ratio.
static float approximate_kl(long M, const float *ratios, const float *logprobs,
                            const float *old_logprobs) {
  double total = 0;
  for (long i = 0; i < M; i++) total += ratios[i] - 1 - (logprobs[i] - old_logprobs[i]);
  return (float)(total / (double)M);
}

static float clipfrac(long M, const float *ratios, float clip) {
  long clipped = 0;
  for (long i = 0; i < M; i++) clipped += fabsf(ratios[i] - 1) > clip;
  return (float)clipped / (float)M;
}

static long update_size(const struct ppo_update *x) {
  const long B = x->B, M = x->M, D = x->policy->networks->columns[0];
  return floats_of(B * x->O) + floats_of(2 * B) + floats_of(order_scratch(B)) +
         floats_of(M * x->O) + floats_of(M * (D + 2)) + 4 * floats_of(M) + floats_of(x->P) +
         workspace_size(x->policy, M);
}

static void update_of_seed(const void *given, int s, float *scratch) {
  const struct ppo_update *x = given;
  const settings c = {x->normalized, x->policy,     x->clip,
                      x->value_clip, x->value_coef, x->entropy_coef};
  const long B = x->B, M = x->M, O = x->O, S = x->S, first = s * B;
  float *features = take_floats(&scratch, B * O);
  int64_t *order = (int64_t *)take_floats(&scratch, 2 * B);
  float *sorting = take_floats(&scratch, order_scratch(B));
  samples b;
  b.features = take_floats(&scratch, M * O);
  b.actions = take_floats(&scratch, M * (x->policy->networks->columns[0] + 2));
  b.logprobs = take_floats(&scratch, M);
  b.values = take_floats(&scratch, M);
  b.advantages = take_floats(&scratch, M);
  b.returns = take_floats(&scratch, M);
  float *gradients = take_floats(&scratch, x->P);
  workspace w = workspace_in(x->policy, M, &scratch);
  memset(gradients, 0, sizeof(float) * x->P);
  features_of(x->policy, s, B, x->obs + first * O, features);
  terms t = {0, 0};
  float kl = 0;
  int stopped = 0;
  for (int epoch = 0; epoch < x->epochs; epoch++) {
    if (stopped && epoch < x->epochs - 1) continue;  // nothing changes but the metrics of the last
    order_of_keys(B, x->shuffle + ((long)s * x->epochs + epoch) * B, order, sorting);
    for (long start = 0; start < B; start += M) {
      if (stopped && start < B - M) continue;
      gather(x, s, order + start, features, &b);
      t = gradient(&c, s, M, &b, &w, gradients, scratch);
      kl = approximate_kl(M, w.ratios, w.policy.logprobs, b.logprobs);
      if (x->target_kl[s] > 0 && !(kl <= 1.5f * x->target_kl[s])) stopped = 1;
      if (!stopped) optimizer_step(x->optimizer, s, gradients);
    }
  }
  float *metrics = x->metrics + s;
  metrics[POLICY_LOSS * S] = t.policy_loss;
  metrics[VALUE_LOSS * S] = t.value_loss;
  metrics[ENTROPY * S] = (float)mean_of(M, w.policy.entropies);
  metrics[APPROX_KL * S] = kl;
  metrics[CLIPFRAC * S] = clipfrac(M, w.ratios, x->clip[s]);
  metrics[EXPLAINED_VARIANCE * S] =
      explained_variance_of(B, x->values + first, x->returns + first);
}

int ppo_update(const struct ppo_update *x) {
  const policy *p = x->policy;
  if (!p->continuous && !are_actions((long)x->S * x->B, p->networks->columns[0], x->actions))
    return 2;
  return for_each(x->S, x->threads, update_size(x), update_of_seed, x);
}
