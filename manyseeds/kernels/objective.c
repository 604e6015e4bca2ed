// The objective of an actor-critic on a minibatch, with its gradient: the networks forward, the
// distributions, the losses, and the networks backward, seed by seed.
//
// S seeds, M samples, W the width of the policy's head: A logits, or the means of D components.
#include <math.h>

#include "categorical.h"
#include "mlp.h"

// Every setting has one value per seed, [S].
typedef struct {
  long samples, stride, x_stride;  // M; samples between the first ones of two seeds, of x too
  int continuous, normalized;
  const float *x;                          // [S, M, in]
  const int64_t *choices;                  // discrete actions [S, M], or
  const float *actions;                    // continuous ones [S, M, D]
  const float *old_logprobs;               // [S, M]; null: the loss is that of A2C
  const float *advantages, *old_values, *returns;  // [S, M]
  const float *log_std;                    // of continuous actions, [S, D]
  const float *clip, *value_clip;          // below 0, and of the value 0, too: do not
  const float *value_coef, *entropy_coef;
  float *losses;                           // [3, S]: total, of the policy, of the value
  float *entropies, *logprobs;             // [S, M]
  float *of_log_std;                       // [S, D], the gradient of log_std
} objective;

// ---- Losses of a seed ----------------------------------------------------------------------

// What advantages are shifted and scaled by: to mean 0 and standard deviation 1 (ddof 1).
static void moments(long M, const float *advantages, float *shift, float *scale) {
  double mean = 0, squares = 0;
  for (long i = 0; i < M; i++) mean += advantages[i];
  mean /= (double)M;
  for (long i = 0; i < M; i++) squares += (advantages[i] - mean) * (advantages[i] - mean);
  *shift = (float)mean;
  *scale = (float)(1 / (sqrt(squares / (double)(M - 1)) + 1e-8));
}

// -mean(log pi A), or with old log-probabilities -mean(min(ratio A, clip(ratio, 1 - clip, 1 + clip)
// A)), and its gradient by log-probability.
static float policy_loss(long M, const float *logprobs, const float *old_logprobs,
                         const float *advantages, int normalized, float clip, float *gradient) {
  float shift = 0, scale = 1;
  if (normalized && M > 1) moments(M, advantages, &shift, &scale);
  double total = 0;
  for (long i = 0; i < M; i++) {
    const float advantage = (advantages[i] - shift) * scale;
    if (!old_logprobs) {
      total += logprobs[i] * advantage;
      gradient[i] = -advantage / (float)M;
      continue;
    }
    const float ratio = expf(logprobs[i] - old_logprobs[i]), gain = ratio * advantage;
    const float inside = ratio < 1 - clip ? 1 - clip : ratio > 1 + clip ? 1 + clip : ratio;
    const float cut = clip >= 0 ? inside * advantage : gain;
    const int is_cut = cut < gain;  // not so for NaN
    total += is_cut ? cut : gain;
    gradient[i] = is_cut ? 0 * ratio : -gain / (float)M;  // NaN where the ratio is infinite
  }
  return (float)(-total / (double)M);
}

// The mean squared error, and its gradient; clip > 0: of the change since the rollout.
static float value_loss(long M, const float *values, const float *old_values, const float *returns,
                        float clip, float *gradient) {
  double total = 0;
  for (long i = 0; i < M; i++) {
    float value = values[i], change = value - old_values[i];
    const int is_cut = clip > 0 && (change < -clip || change > clip);
    if (is_cut) value = old_values[i] + (change < 0 ? -clip : clip);
    const float error = value - returns[i];
    total += error * error;
    gradient[i] = is_cut ? 0 : 2 * error / (float)M;
  }
  return (float)(total / (double)M);
}

// ---- Normal distributions ------------------------------------------------------------------

static const float HALF_LOG_2_PI = 0.918938533f;

// Log-probabilities and entropies [M] of actions, means [M, D]. inverse: [D], gets 1 / std.
static void gaussian_forward(long M, int D, const float *means, const float *log_std,
                             const float *actions, float *inverse, float *logprobs,
                             float *entropies) {
  float normalizer = 0;
  for (int d = 0; d < D; d++) {
    inverse[d] = expf(-log_std[d]);
    normalizer += log_std[d] + HALF_LOG_2_PI;
  }
  for (long i = 0; i < M; i++) {
    float squares = 0;
    for (int d = 0; d < D; d++) {
      const float z = (actions[i * D + d] - means[i * D + d]) * inverse[d];
      squares += z * z;
    }
    logprobs[i] = -0.5f * squares - normalizer;
    entropies[i] = normalizer + 0.5f * (float)D;
  }
}

// Gradients of means [M, D] and of log_std [D], from those of log-probabilities [M] and of every
// entropy.
static void gaussian_backward(long M, int D, const float *means, const float *actions,
                              const float *inverse, const float *of_logprobs, float of_entropy,
                              float *of_means, float *of_log_std) {
  for (int d = 0; d < D; d++) {
    double total = 0;
    for (long i = 0; i < M; i++) {
      const float z = (actions[i * D + d] - means[i * D + d]) * inverse[d];
      of_means[i * D + d] = of_logprobs[i] * z * inverse[d];
      total += of_logprobs[i] * (z * z - 1) + of_entropy;
    }
    of_log_std[d] = (float)total;
  }
}

// ---- The objective -------------------------------------------------------------------------

static long scratch_of(const networks *m, long M) {
  const long W = m->columns[0], forward = forward_scratch(m), backward = backward_scratch(m);
  return 2 * M * width_of_hidden(m) + 3 * M * W + 4 * M + W + (forward > backward ? forward : backward);
}

typedef struct {
  const networks *m;
  const objective *o;
  float *const *gradients;
} call;

static void one_seed(const void *given, int s, float *scratch) {
  const call *c = given;
  const networks *m = c->m;
  const objective *o = c->o;
  float *const *gradients = c->gradients;
  const long M = o->samples, H = width_of_hidden(m), first = s * o->stride;
  const int W = m->columns[0], S = m->seeds;
  const float *x = o->x + s * o->x_stride * m->sizes[0];
  float *hidden = scratch, *head = hidden + 2 * M * H, *probabilities = head + M * W;
  float *of_head = probabilities + M * W, *values = of_head + M * W, *of_values = values + M;
  float *of_logprobs = of_values + M, *of_entropies = of_logprobs + M;
  float *inverse = of_entropies + M, *rest = inverse + W;
  prepare_forward(m, s, 0, rest);
  network_forward(m, s, 0, (int)M, x, hidden, rest, head);
  prepare_forward(m, s, 1, rest);
  network_forward(m, s, 1, (int)M, x, hidden + M * H, rest, values);
  float *logprobs = o->logprobs + s * M, *entropies = o->entropies + s * M;
  const int64_t *choices = o->choices + (o->continuous ? 0 : first);
  const float *actions = o->actions + (o->continuous ? first * W : 0);
  if (o->continuous)
    gaussian_forward(M, W, head, o->log_std + s * W, actions, inverse, logprobs, entropies);
  else
    categorical_forward(M, W, head, choices, logprobs, entropies, probabilities);

  const float *old_logprobs = o->old_logprobs ? o->old_logprobs + first : 0;
  const float of_policy = policy_loss(M, logprobs, old_logprobs, o->advantages + first,
                                      o->normalized, o->clip[s], of_logprobs);
  const float of_value = value_loss(M, values, o->old_values + first, o->returns + first,
                                    o->value_clip[s], of_values);
  double entropy = 0;
  for (long i = 0; i < M; i++) {
    entropy += entropies[i];
    of_values[i] *= o->value_coef[s];
    of_entropies[i] = -o->entropy_coef[s] / (float)M;
  }
  const float coef = o->entropy_coef[s], bonus = coef != 0 ? coef * (float)(entropy / (double)M) : 0;
  o->losses[s] = of_policy + o->value_coef[s] * of_value - bonus;
  o->losses[S + s] = of_policy;
  o->losses[2 * S + s] = of_value;

  if (o->continuous)
    gaussian_backward(M, W, head, actions, inverse, of_logprobs, of_entropies[0], of_head,
                      o->of_log_std + s * W);
  else
    categorical_backward(M, W, head, choices, logprobs, entropies, probabilities, of_logprobs,
                         o->entropy_coef[s] != 0 ? of_entropies : 0, of_head);
  network_backward(m, s, 0, (int)M, x, hidden, of_head, gradients, rest);
  network_backward(m, s, 1, (int)M, x, hidden + M * H, of_values, gradients, rest);
}

// gradients: as mlp_backward. Network 0 is the policy, 1 the value. Returns 0, 1 without memory, or 2
// for an action that is none.
int actor_critic(const networks *m, const objective *o, float *const *gradients) {
  for (long i = 0; !o->continuous && i < m->seeds * o->samples; i++) {
    const long s = i / o->samples;
    const int64_t choice = o->choices[s * o->stride + i % o->samples];
    if (choice < 0 || choice >= m->columns[0]) return 2;
  }
  const call given = {m, o, gradients};
  return for_each(m->seeds, m->threads, scratch_of(m, o->samples), one_seed, &given);
}
