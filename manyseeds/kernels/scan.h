// Recurrences over the steps of one seed's rollout, and the order of keys.
#pragma once
#include <stdint.h>

// Generalised advantage estimates [T, N]: A_t = delta_t + gamma lambda A_{t+1}, where neither reaches
// beyond a termination, nor A beyond a truncation.
void advantages_of(long T, long N, const float *rewards, const float *values,
                   const float *next_values, const unsigned char *terminated,
                   const unsigned char *truncated, float gamma, float lambda, float *advantages);

// r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n V(s_{t+n}) - V(s_t) [T, N], n smaller where the episode or
// the rollout ends before.
void n_step_advantages_of(long T, long N, const float *rewards, const float *values,
                          const float *next_values, const unsigned char *terminated,
                          const unsigned char *truncated, float gamma, long n, float *advantages);

// The order that sorts B keys, which are not negative; equal keys keep theirs.
// scratch: order_scratch(B) floats.
void order_of_keys(long B, const float *keys, int64_t *order, float *scratch);
static inline long order_scratch(long B) { return 3 * B + 16; }
