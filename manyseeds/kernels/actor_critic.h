// A policy and a value function of a seed: the first two networks of a `policy`.
//
// M samples, O observation size.
#pragma once
#include "policy.h"

// What is known of M samples, and what a loss tells of them.
typedef struct {
  evaluated policy;
  float *hidden, *values;  // of the value function; values: [M], like all below
  float *of_logprobs, *of_values, *of_entropies;  // gradients of the loss
} actor_critic;

// Memory for M samples in scratch, of `actor_critic_size` floats.
long actor_critic_size(const policy *p, long M);
actor_critic actor_critic_in(const policy *p, long M, float **scratch);

// Log-probabilities of actions, entropies and values for features x [M, O]. scratch: policy_scratch.
void actor_critic_forward(const policy *p, int s, long M, const float *x, const void *actions,
                          actor_critic *w, float *scratch);

// The gradients [P] of one seed's parameters from those of log-probabilities and values, and of a
// bonus: entropy_coef times the mean entropy.
void actor_critic_backward(const policy *p, int s, long M, const float *x, const void *actions,
                           actor_critic *w, float entropy_coef, float *gradients, float *scratch);

// The mean squared error of values [M], and its gradient times coef.
float squared_error(long M, const float *values, const float *targets, float coef,
                    float *gradient);
