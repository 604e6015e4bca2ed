// The loss of temporal-difference errors with its gradient, for each seed.
#include <math.h>
#include <stdint.h>

// Mean losses [S] of q[a] - target for action values q [S, M, A] and actions, targets [S, M]: huber
// with a threshold of 1, or the square. gradient: [S, M, A], by q.
void td_losses(long S, long M, long A, const float *q, const int64_t *actions,
               const float *targets, int huber, float *losses, float *gradient) {
  for (long s = 0; s < S; s++) {
    double total = 0;
    for (long i = s * M; i < (s + 1) * M; i++) {
      const float error = q[i * A + actions[i]] - targets[i], size = fabsf(error);
      float slope = 2 * error;
      if (huber) slope = size < 1 ? error : copysignf(1, error);
      if (error != error) slope = error;  // NaN stays
      total += huber ? (size < 1 ? 0.5f * error * error : size - 0.5f) : error * error;
      for (long a = 0; a < A; a++) gradient[i * A + a] = 0;
      gradient[i * A + actions[i]] = slope / (float)M;
    }
    losses[s] = (float)(total / (double)M);
  }
}
