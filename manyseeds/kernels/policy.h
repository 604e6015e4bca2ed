// Stochastic policies of a seed axis: a network's outputs and the distributions they stand for.
//
// S seeds, M samples, O inputs, W outputs of the network: A logits, or the means of D components.
#pragma once
#include "mlp.h"
#include "parallel.h"

// Bounds of the logarithms of standard deviations that a network puts out.
enum { LOG_STD_MIN = -20, LOG_STD_MAX = 2 };

typedef struct {
  int S, O, continuous;
  const networks *networks;    // the first of a seed is the policy's
  const float *log_std;        // of seeds `stride` apart, D each; null: discrete
  long stride, place;          // place: of its gradient in those of a seed
  const float *mean, *scale;   // [S, O], of normalised observations; null: not
} policy;

// Sample i of the actions of a policy: int64, or D floats.
INLINE const void *actions_at(const policy *p, const void *actions, long i) {
  if (p->continuous) return (const float *)actions + i * p->networks->columns[0];
  return (const int64_t *)actions + i;
}

// What the networks see of M observations x [M, O] of seed s.
void features_of(const policy *p, int s, long M, const float *x, float *features);

// What is known of M samples after `policy_forward`, for `policy_backward`.
typedef struct {
  float *logprobs, *entropies;  // [M]
  float *hidden, *head, *probabilities, *inverse, *of_head;
} evaluated;

// Memory for M samples in scratch, of `evaluated_size` floats.
long evaluated_size(const policy *p, long M);
evaluated evaluated_in(const policy *p, long M, float **scratch);

// Floats of scratch that the functions below need.
long policy_scratch(const policy *p);

// Floats of memory for M actions, and a copy of action `from` there as action `to`.
INLINE long floats_of_actions(const policy *p, long M) {
  return floats_of(M * (p->continuous ? p->networks->columns[0] : 2));
}

INLINE void copy_action(const policy *p, const void *actions, long from, void *others, long to) {
  const size_t size = p->continuous ? sizeof(float) * p->networks->columns[0] : sizeof(int64_t);
  memcpy((void *)actions_at(p, others, to), actions_at(p, actions, from), size);
}

// Log-probabilities of actions, [M] int64 or [M, D] floats, and entropies, for features x [M, O].
void policy_forward(const policy *p, int s, long M, const float *x, const void *actions,
                    evaluated *e, float *scratch);

// The gradients of one seed's parameters, flat [P] as mlp.h says, from those of log-probabilities and
// entropies (null: none).
void policy_backward(const policy *p, int s, long M, const float *x, const void *actions,
                     const evaluated *e, const float *of_logprobs, const float *of_entropies,
                     float *gradients, float *scratch);

// V [M] of network k of seed s, for features x [M, O]; hidden: [M, width_of_hidden] or null.
void value_forward(const networks *m, int s, int k, long M, const float *x, float *hidden,
                   float *values, float *scratch);
