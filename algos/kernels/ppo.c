// PPO in C: what backpropagate() and update() of ppo.py say, seed by seed.
//
// S seeds, B samples of a rollout, M per gradient step, O observation size, D components of a
// continuous action, P parameters. Python calls the functions at the ends of the sections, with the
// structs before them (manyseeds/kernels/binding.py).
#include <math.h>

#include "actor_critic.h"
#include "distributions.h"
#include "functions.h"
#include "optim.h"
#include "scan.h"
#include "statistics.h"

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

// The gradients of seed s [P] and the terms of the loss of M samples. ratios: [M], are set.
static terms gradient(const settings *c, int s, long M, const samples *b, actor_critic *w,
                      float *ratios, float *gradients, float *scratch) {
  const policy *p = c->policy;
  actor_critic_forward(p, s, M, b->features, b->actions, w, scratch);
  for (long i = 0; i < M; i++) ratios[i] = w->policy.logprobs[i] - b->logprobs[i];
  exp_of_all(M, ratios, ratios);
  float shift = 0, scale = 1;
  if (c->normalized && M > 1) normalizer_of(M, b->advantages, &shift, &scale);
  const terms found = {
      policy_loss(M, ratios, b->advantages, shift, scale, c->clip[s], w->of_logprobs),
      value_loss(M, w->values, b->values, b->returns, c->value_clip[s], c->value_coef[s],
                 w->of_values)};
  actor_critic_backward(p, s, M, b->features, b->actions, w, c->entropy_coef[s], gradients,
                        scratch);
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
  actor_critic w = actor_critic_in(x->policy, M, &scratch);
  float *ratios = take_floats(&scratch, M);
  const terms t = gradient(&c, s, M, &b, &w, ratios, x->gradients + (long)s * x->P, scratch);
  x->policy_loss[s] = t.policy_loss;
  x->value_loss[s] = t.value_loss;
  memcpy(x->entropies + first, w.policy.entropies, sizeof(float) * M);
  memcpy(x->logprobs + first, w.policy.logprobs, sizeof(float) * M);
}

int ppo_gradient(const struct ppo_gradient *x) {
  const policy *p = x->policy;
  if (!p->continuous && !are_actions((long)x->S * x->M, p->networks->columns[0], x->actions))
    return 2;
  const long size = floats_of((long)x->M * x->O) + floats_of(x->M) + actor_critic_size(p, x->M);
  return for_each(x->S, x->threads, size + policy_scratch(p), gradient_of_seed, x);
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
         floats_of(M * x->O) + floats_of(M * (D + 2)) + 5 * floats_of(M) + floats_of(x->P) +
         actor_critic_size(x->policy, M) + policy_scratch(x->policy);
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
  float *ratios = take_floats(&scratch, M), *gradients = take_floats(&scratch, x->P);
  actor_critic w = actor_critic_in(x->policy, M, &scratch);
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
      t = gradient(&c, s, M, &b, &w, ratios, gradients, scratch);
      kl = approximate_kl(M, ratios, w.policy.logprobs, b.logprobs);
      if (x->target_kl[s] > 0 && !(kl <= 1.5f * x->target_kl[s])) stopped = 1;
      if (!stopped) optimizer_step(x->optimizer, s, gradients);
    }
  }
  float *metrics = x->metrics + s;
  metrics[POLICY_LOSS * S] = t.policy_loss;
  metrics[VALUE_LOSS * S] = t.value_loss;
  metrics[ENTROPY * S] = (float)mean_of(M, w.policy.entropies);
  metrics[APPROX_KL * S] = kl;
  metrics[CLIPFRAC * S] = clipfrac(M, ratios, x->clip[s]);
  metrics[EXPLAINED_VARIANCE * S] =
      explained_variance_of(B, x->values + first, x->returns + first);
}

int ppo_update(const struct ppo_update *x) {
  const policy *p = x->policy;
  if (!p->continuous && !are_actions((long)x->S * x->B, p->networks->columns[0], x->actions))
    return 2;
  return for_each(x->S, x->threads, update_size(x), update_of_seed, x);
}
