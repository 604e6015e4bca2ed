// The loss of a network's outputs against targets with its gradient, seed by seed: values of states,
// or those of chosen actions.
//
// S seeds, M samples, A outputs.
#include <math.h>

#include "distributions.h"
#include "mlp.h"
#include "parallel.h"

struct regress {
  int S, M, O, P, huber;     // huber: with a threshold of 1; otherwise the square
  const networks *networks;  // the first of a seed
  const float *x;            // [S, M, O]
  const int64_t *actions;    // [S, M], which output; null: the first
  const float *targets;      // [S, M]
  float *losses;             // [S]
  float *outputs;            // [S, M], the chosen ones
  float *gradients;          // [S, P], 0 where nothing is written
};

static long scratch_of(const networks *m, long M) {
  const long forward = forward_scratch(m), backward = backward_scratch(m);
  return M * (width_of_hidden(m) + 2 * m->columns[0]) + (forward > backward ? forward : backward);
}

static void one_seed(const void *given, int s, float *scratch) {
  const struct regress *r = given;
  const networks *m = r->networks;
  const long M = r->M, first = s * M, A = m->columns[0];
  const float *x = r->x + first * r->O;
  float *hidden = scratch, *y = hidden + M * width_of_hidden(m), *of_y = y + M * A;
  float *rest = of_y + M * A, *to[parameters_of(m)];
  prepare_forward(m, s, 0, rest);
  network_forward(m, s, 0, (int)M, x, hidden, rest, y);
  double total = 0;
  for (long i = 0; i < M; i++) {
    const long chosen = i * A + (r->actions ? r->actions[first + i] : 0);
    const float error = y[chosen] - r->targets[first + i], size = fabsf(error);
    float slope = 2 * error;
    if (r->huber && size >= 1) slope = copysignf(1, error);
    else if (r->huber) slope = error;  // NaN, too
    total += !r->huber ? error * error : size < 1 ? 0.5f * error * error : size - 0.5f;
    r->outputs[first + i] = y[chosen];
    for (long a = 0; a < A; a++) of_y[i * A + a] = 0;
    of_y[chosen] = slope / (float)M;
  }
  r->losses[s] = (float)(total / (double)M);
  gradients_in(m, 0, r->gradients + (long)s * r->P, to);
  network_backward(m, s, 0, (int)M, x, hidden, of_y, to, rest);
}

int regress(const struct regress *r) {
  const networks *m = r->networks;
  if (r->actions && !are_actions((long)r->S * r->M, m->columns[0], r->actions)) return 2;
  return for_each(r->S, m->threads, scratch_of(m, r->M), one_seed, r);
}
