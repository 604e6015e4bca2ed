// Distributions over actions, of R samples: log-probabilities, entropies and their gradients.
#include "distributions.h"

#include <float.h>

#include "functions.h"

void categorical_forward(long R, int A, const float *logits, const int64_t *actions,
                         float *logprobs, float *entropies, float *probabilities) {
  float *log_totals = entropies;  // until they are known
  for (long r = 0; r < R; r++) {
    const float *x = logits + r * A;
    float *p = probabilities + r * A, most = x[0];
    for (int a = 1; a < A; a++) most = x[a] > most ? x[a] : most;
    for (int a = 0; a < A; a++) p[a] = x[a] - most;
    logprobs[r] = p[actions[r]];
  }
  exp_of_all(R * A, probabilities, probabilities);
  for (long r = 0; r < R; r++) {
    float *p = probabilities + r * A, total = 0;
    for (int a = 0; a < A; a++) total += p[a];
    for (int a = 0; a < A; a++) p[a] /= total;
    log_totals[r] = total;
  }
  log_of_all(R, log_totals, log_totals);
  for (long r = 0; r < R; r++) {
    const float *x = logits + r * A, *p = probabilities + r * A, log_total = log_totals[r];
    float most = x[0], entropy = 0;
    for (int a = 1; a < A; a++) most = x[a] > most ? x[a] : most;
    for (int a = 0; a < A; a++) {
      // Not added to the largest: large logits would round the logarithm of the total away.
      const float logp = x[a] - most - log_total;
      entropy -= p[a] * (logp < -FLT_MAX ? -FLT_MAX : logp);  // 0 * log 0 is to be 0
    }
    logprobs[r] -= log_total;
    entropies[r] = entropy;
  }
}

// d log pi(k) / d z_a = [a = k] - p_a;  d H / d z_a = -p_a (log p_a + H).
void categorical_backward(long R, int A, const float *logits, const int64_t *actions,
                          const float *logprobs, const float *entropies, const float *probabilities,
                          const float *of_logprobs, const float *of_entropies, float *gradients) {
  for (long r = 0; r < R; r++) {
    const float *x = logits + r * A, *p = probabilities + r * A;
    float *g = gradients + r * A;
    const float of_logprob = of_logprobs ? of_logprobs[r] : 0;
    const float of_entropy = of_entropies ? of_entropies[r] : 0;
    for (int a = 0; a < A; a++) g[a] = -p[a] * of_logprob;
    g[actions[r]] += of_logprob;
    if (of_entropy == 0) continue;  // one that nothing asks for
    float known = x[actions[r]], known_logp = logprobs[r];  // of any possible action
    if (known < -FLT_MAX)
      for (int a = 0; a < A; a++)
        if (x[a] > known) known = x[a], known_logp = log_of_one(p[a]);
    for (int a = 0; a < A; a++) {
      const float logp = x[a] - known + known_logp;
      // An action that cannot be taken has no gradient.
      if (p[a] != 0) g[a] -= p[a] * (of_entropy * (logp + entropies[r]));
    }
  }
}

static const float HALF_LOG_2_PI = 0.918938533f;

void gaussian_forward(long R, int D, const float *means, const float *log_std, const float *actions,
                      float *inverse, float *logprobs, float *entropies) {
  float normalizer = 0;
  for (int d = 0; d < D; d++) {
    inverse[d] = exp_of_one(-log_std[d]);
    normalizer += log_std[d] + HALF_LOG_2_PI;
  }
  for (long r = 0; r < R; r++) {
    float squares = 0;
    for (int d = 0; d < D; d++) {
      const float z = (actions[r * D + d] - means[r * D + d]) * inverse[d];
      squares += z * z;
    }
    logprobs[r] = -0.5f * squares - normalizer;
    entropies[r] = normalizer + 0.5f * (float)D;
  }
}

void gaussian_backward(long R, int D, const float *means, const float *actions,
                       const float *inverse, const float *of_logprobs, const float *of_entropies,
                       float *of_means, float *of_log_std) {
  for (int d = 0; d < D; d++) {
    double total = 0;
    for (long r = 0; r < R; r++) {
      const float z = (actions[r * D + d] - means[r * D + d]) * inverse[d];
      of_means[r * D + d] = of_logprobs[r] * z * inverse[d];
      total += of_logprobs[r] * (z * z - 1) + (of_entropies ? of_entropies[r] : 0);
    }
    of_log_std[d] = (float)total;
  }
}

void log_softmax(long R, int A, const float *logits, float *logps, float *totals) {
  for (long r = 0; r < R; r++) {
    const float *x = logits + r * A;
    float most = x[0];
    for (int a = 1; a < A; a++) most = x[a] > most ? x[a] : most;
    for (int a = 0; a < A; a++) logps[r * A + a] = x[a] - most;
  }
  exp_of_all(R * A, logps, totals);
  for (long r = 0; r < R; r++) {
    float total = 0;
    for (int a = 0; a < A; a++) total += totals[r * A + a];
    totals[r] = total;  // in the place of a number that was read
  }
  log_of_all(R, totals, totals);
  for (long r = 0; r < R; r++)
    for (int a = 0; a < A; a++) logps[r * A + a] -= totals[r];
}

float categorical_kl(long R, int A, const float *probabilities, const float *old_logps,
                     const float *new_logps) {
  double total = 0;
  for (long i = 0; i < R * A; i++) total += probabilities[i] * (old_logps[i] - new_logps[i]);
  return (float)(total / (double)R);
}

float gaussian_kl(long R, int D, const float *old_means, const float *old_log_std,
                  const float *new_means, const float *new_log_std) {
  double total = 0;
  for (int d = 0; d < D; d++) {
    const float inverse = exp_of_one(-new_log_std[d]);
    const float ratio = exp_of_one(2 * (old_log_std[d] - new_log_std[d]));  // of the variances
    for (long r = 0; r < R; r++) {
      const float z = (old_means[r * D + d] - new_means[r * D + d]) * inverse;
      total += 0.5f * (ratio - 1 + z * z) + new_log_std[d] - old_log_std[d];
    }
  }
  return (float)(total / (double)R);
}

void categorical_hessian(long R, int A, const float *probabilities, float *vectors) {
  for (long r = 0; r < R; r++) {
    const float *p = probabilities + r * A;
    float *v = vectors + r * A, mean = 0;
    for (int a = 0; a < A; a++) mean += p[a] * v[a];
    for (int a = 0; a < A; a++) v[a] = p[a] * (v[a] - mean) / (float)R;
  }
}

void gaussian_hessian(long R, int D, const float *inverse, float *vectors) {
  for (long r = 0; r < R; r++)
    for (int d = 0; d < D; d++) vectors[r * D + d] *= inverse[d] * inverse[d] / (float)R;
}

// For Python: as `Categorical.logprob_and_entropy` of distributions.py, and backwards.
// Returns 0, or 2 for an action that is none.
int categorical(long R, int A, const float *logits, const int64_t *actions, float *logprobs,
                float *entropies, float *probabilities) {
  if (!are_actions(R, A, actions)) return 2;
  categorical_forward(R, A, logits, actions, logprobs, entropies, probabilities);
  return 0;
}
