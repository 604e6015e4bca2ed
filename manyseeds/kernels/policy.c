// Stochastic policies of a seed axis: a network's outputs and the distributions they stand for.
#include "policy.h"

#include "distributions.h"
#include "environment.h"

static const float LIMIT = 10;  // of normalised observations

void features_of(const policy *p, int s, long M, const float *x, float *features) {
  const long O = p->networks->sizes[0];
  if (!p->mean) {
    memcpy(features, x, sizeof(float) * (size_t)(M * O));
    return;
  }
  const float *mean = p->mean + s * O, *scale = p->scale + s * O;
  for (long i = 0; i < M; i++)
    for (long o = 0; o < O; o++)
      features[i * O + o] = clamp((x[i * O + o] - mean[o]) * scale[o], -LIMIT, LIMIT);
}

long evaluated_size(const policy *p, long M) {
  const long W = p->networks->columns[0];
  return 2 * floats_of(M) + floats_of(M * width_of_hidden(p->networks)) + 3 * floats_of(M * W) +
         floats_of(W);
}

evaluated evaluated_in(const policy *p, long M, float **scratch) {
  const long W = p->networks->columns[0];
  evaluated e;
  e.logprobs = take_floats(scratch, M);
  e.entropies = take_floats(scratch, M);
  e.hidden = take_floats(scratch, M * width_of_hidden(p->networks));
  e.head = take_floats(scratch, M * W);
  e.probabilities = take_floats(scratch, M * W);
  e.of_head = take_floats(scratch, M * W);
  e.inverse = take_floats(scratch, W);
  return e;
}

long policy_scratch(const policy *p) {
  const long forward = forward_scratch(p->networks), backward = backward_scratch(p->networks);
  return forward > backward ? forward : backward;
}

void policy_forward(const policy *p, int s, long M, const float *x, const void *actions,
                    evaluated *e, float *scratch) {
  const int W = p->networks->columns[0];
  prepare_forward(p->networks, s, 0, scratch);
  network_forward(p->networks, s, 0, (int)M, x, e->hidden, scratch, e->head);
  if (p->continuous)
    gaussian_forward(M, W, e->head, p->log_std + s * p->stride, actions, e->inverse, e->logprobs,
                     e->entropies);
  else
    categorical_forward(M, W, e->head, actions, e->logprobs, e->entropies, e->probabilities);
}

void policy_backward(const policy *p, int s, long M, const float *x, const void *actions,
                     const evaluated *e, const float *of_logprobs, const float *of_entropies,
                     float *gradients, float *scratch) {
  const networks *m = p->networks;
  const int W = m->columns[0];
  if (p->continuous)
    gaussian_backward(M, W, e->head, actions, e->inverse, of_logprobs, of_entropies, e->of_head,
                      gradients + p->place);
  else
    categorical_backward(M, W, e->head, actions, e->logprobs, e->entropies, e->probabilities,
                         of_logprobs, of_entropies, e->of_head);
  float *to[2 * m->layers];
  gradients_in(m, 0, gradients, to);
  network_backward(m, s, 0, (int)M, x, e->hidden, e->of_head, to, scratch);
}

void value_forward(const networks *m, int s, int k, long M, const float *x, float *hidden,
                   float *values, float *scratch) {
  prepare_forward(m, s, k, scratch);
  network_forward(m, s, k, (int)M, x, hidden, scratch, values);
}
