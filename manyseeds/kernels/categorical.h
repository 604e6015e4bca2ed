// Distributions over A actions, of R samples: log-probabilities, entropies and their gradients.
#pragma once
#include <stdint.h>

// logits, probabilities: [R, A]; actions, logprobs, entropies: [R]. Returns 0, or 1 for an action that
// is none.
int categorical_forward(long R, int A, const float *logits, const int64_t *actions,
                         float *logprobs, float *entropies, float *probabilities);

// The gradient of the logits, from those of log-probabilities and entropies, either of which may be
// null.
void categorical_backward(long R, int A, const float *logits, const int64_t *actions,
                          const float *logprobs, const float *entropies, const float *probabilities,
                          const float *of_logprobs, const float *of_entropies, float *gradients);
