// Distributions over actions, of R samples: log-probabilities, entropies and their gradients.
#pragma once
#include <stdint.h>

// Discrete. logits, probabilities: [R, A]; actions, logprobs, entropies: [R]. Each action is from 0 to
// A - 1.
void categorical_forward(long R, int A, const float *logits, const int64_t *actions,
                         float *logprobs, float *entropies, float *probabilities);

// The gradient of the logits, from those of log-probabilities and entropies, either of which may be
// null.
void categorical_backward(long R, int A, const float *logits, const int64_t *actions,
                          const float *logprobs, const float *entropies, const float *probabilities,
                          const float *of_logprobs, const float *of_entropies, float *gradients);

// Normal, with D independent components; means, actions: [R, D], log_std: [D]. inverse: [D], gets
// 1 / std.
void gaussian_forward(long R, int D, const float *means, const float *log_std, const float *actions,
                      float *inverse, float *logprobs, float *entropies);

// Gradients of means [R, D] and of log_std [D], from those of log-probabilities and entropies, which
// may be null.
void gaussian_backward(long R, int D, const float *means, const float *actions,
                       const float *inverse, const float *of_logprobs, const float *of_entropies,
                       float *of_means, float *of_log_std);

// Log-probabilities [R, A] of all actions. totals: [R, A] floats of scratch.
void log_softmax(long R, int A, const float *logits, float *logps, float *totals);

// Mean KL(old || new) of R pairs: by the old probabilities and both log-probabilities [R, A], or by
// means [R, D] and log_std [D].
float categorical_kl(long R, int A, const float *probabilities, const float *old_logps,
                     const float *new_logps);
float gaussian_kl(long R, int D, const float *old_means, const float *old_log_std,
                  const float *new_means, const float *new_log_std);

// The Hessian of that KL where both are one policy, times vectors in the place of logits [R, A] or
// means [R, D], in place. By log_std it is 2.
void categorical_hessian(long R, int A, const float *probabilities, float *vectors);
void gaussian_hessian(long R, int D, const float *inverse, float *vectors);

// Whether all of R actions are from 0 to A - 1.
static inline int are_actions(long R, int A, const int64_t *actions) {
  for (long r = 0; r < R; r++)
    if (actions[r] < 0 || actions[r] >= A) return 0;
  return 1;
}
