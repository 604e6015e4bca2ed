// The loss of a network's outputs against targets with its gradient, seed by seed: values of states,
// or those of chosen actions.
//
// S seeds, M samples, A outputs.
#include <math.h>

#include "mlp.h"

typedef struct {
  long samples;
  int huber;               // with a threshold of 1; otherwise the square
  const float *x;          // [S, M, in]
  const int64_t *actions;  // [S, M], which output; null: the first
  const float *targets;    // [S, M]
  float *losses;           // [S]
  float *outputs;          // [S, M], the chosen ones
} regression;

static long scratch_of(const networks *m, long M) {
  const long forward = forward_scratch(m), backward = backward_scratch(m);
  return M * (width_of_hidden(m) + 2 * m->columns[0]) + (forward > backward ? forward : backward);
}

typedef struct {
  const networks *m;
  const regression *r;
  float *const *gradients;
} call;

static void one_seed(const void *given, int s, float *scratch) {
  const call *c = given;
  const networks *m = c->m;
  const regression *r = c->r;
  float *const *gradients = c->gradients;
  const long M = r->samples, first = s * M, A = m->columns[0];
  const float *x = r->x + first * m->sizes[0];
  float *hidden = scratch, *y = hidden + M * width_of_hidden(m), *of_y = y + M * A;
  float *rest = of_y + M * A;
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
  network_backward(m, s, 0, (int)M, x, hidden, of_y, gradients, rest);
}

// gradients: as mlp_backward. Returns 0, 1 without memory, or 2 for an action that is none.
int regress(const networks *m, const regression *r, float *const *gradients) {
  for (long i = 0; r->actions && i < m->seeds * r->samples; i++)
    if (r->actions[i] < 0 || r->actions[i] >= m->columns[0]) return 2;
  const call given = {m, r, gradients};
  return for_each(m->seeds, m->threads, scratch_of(m, r->samples), one_seed, &given);
}
