// Distributions over A actions, of R samples: log-probabilities, entropies and their gradients.
#include "categorical.h"

#include <float.h>
#include <math.h>

int categorical_forward(long R, int A, const float *logits, const int64_t *actions,
                         float *logprobs, float *entropies, float *probabilities) {
  for (long r = 0; r < R; r++)
    if (actions[r] < 0 || actions[r] >= A) return 1;
  for (long r = 0; r < R; r++) {
    const float *x = logits + r * A;
    float *p = probabilities + r * A, most = x[0], total = 0, entropy = 0;
    for (int a = 1; a < A; a++) most = x[a] > most ? x[a] : most;
    for (int a = 0; a < A; a++) total += p[a] = expf(x[a] - most);
    float log_total = logf(total);  // not added to the largest: large logits would round it away
    for (int a = 0; a < A; a++) {
      p[a] /= total;
      const float logp = x[a] - most - log_total;
      entropy -= p[a] * (logp < -FLT_MAX ? -FLT_MAX : logp);  // 0 * log 0 is to be 0
    }
    logprobs[r] = x[actions[r]] - most - log_total;
    entropies[r] = entropy;
  }
  return 0;
}

// d log pi(k) / d z_a = [a = k] - p_a;  d H / d z_a = -p_a (log p_a + H).
void categorical_backward(long R, int A, const float *logits, const int64_t *actions,
                          const float *logprobs, const float *entropies, const float *probabilities,
                          const float *of_logprobs, const float *of_entropies, float *gradients) {
  for (long r = 0; r < R; r++) {
    const float *x = logits + r * A, *p = probabilities + r * A;
    float *g = gradients + r * A, h = entropies[r];
    float g_logprob = of_logprobs ? of_logprobs[r] : 0, g_entropy = of_entropies ? of_entropies[r] : 0;
    float known = x[actions[r]], known_logp = logprobs[r];  // of any possible action
    if (known < -FLT_MAX)
      for (int a = 0; a < A; a++)
        if (x[a] > known) known = x[a], known_logp = logf(p[a]);
    for (int a = 0; a < A; a++) {
      float logp = x[a] - known + known_logp;
      // An entropy that nothing asks for, and an action that cannot be taken, have no gradient.
      float of_entropy = g_entropy == 0 || p[a] == 0 ? 0 : g_entropy * (logp + h);
      g[a] = -p[a] * (g_logprob + of_entropy);
    }
    g[actions[r]] += g_logprob;
  }
}
