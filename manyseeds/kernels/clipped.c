// The two losses of PPO with their gradients: the clipped objective and the value loss.
#include <math.h>

// What a minibatch has, [S, M] each.
typedef struct {
  const float *logprobs, *old_logprobs, *advantages;
  const float *values, *old_values, *returns;
} minibatch;

// -mean(min(ratio A, clip(ratio, 1 - clip, 1 + clip) A)) of a seed, and its gradient; clip < 0: none.
static float policy_loss(long M, const float *logprobs, const float *old_logprobs,
                         const float *advantages, int normalized, float clip, float *gradient) {
  double mean = 0, squares = 0;
  if (normalized && M > 1) {
    for (long i = 0; i < M; i++) mean += advantages[i];
    mean /= (double)M;
    for (long i = 0; i < M; i++) squares += (advantages[i] - mean) * (advantages[i] - mean);
  }
  const float shift = (float)mean;
  const float scale = normalized && M > 1 ? (float)(1 / (sqrt(squares / (double)(M - 1)) + 1e-8)) : 1;
  double total = 0;
  for (long i = 0; i < M; i++) {
    float ratio = expf(logprobs[i] - old_logprobs[i]), advantage = (advantages[i] - shift) * scale;
    float inside = ratio < 1 - clip ? 1 - clip : ratio > 1 + clip ? 1 + clip : ratio;
    float gain = ratio * advantage, cut = clip < 0 ? gain : inside * advantage;
    int is_cut = cut < gain;  // not so for NaN
    total += is_cut ? cut : gain;
    gradient[i] = is_cut ? 0 : -gain / (float)M;
  }
  return (float)(-total / (double)M);
}

// The mean squared error of a seed, and its gradient; clip > 0: of the change since the rollout.
static float value_loss(long M, const float *values, const float *old_values, const float *returns,
                        float clip, float *gradient) {
  double total = 0;
  for (long i = 0; i < M; i++) {
    float value = values[i], change = value - old_values[i];
    int is_cut = clip > 0 && (change < -clip || change > clip);
    if (is_cut) value = old_values[i] + (change < 0 ? -clip : clip);
    float error = value - returns[i];
    total += error * error;
    gradient[i] = is_cut ? 0 : 2 * error / (float)M;
  }
  return (float)(total / (double)M);
}

// clip: [S], clip range of the ratio, below 0 for none; value_clip: the same of values, 0 for none.
// losses [2, S] and gradients [2, S, M]: of the policy (by log-probability), of the value.
void clipped_losses(long S, long M, const minibatch *x, int normalized, const float *clip,
                    float value_clip, float *losses, float *gradients) {
  for (long s = 0; s < S; s++) {
    const long i = s * M;
    losses[s] = policy_loss(M, x->logprobs + i, x->old_logprobs + i, x->advantages + i, normalized,
                            clip[s], gradients + i);
    losses[S + s] = value_loss(M, x->values + i, x->old_values + i, x->returns + i, value_clip,
                               gradients + (S + s) * M);
  }
}
