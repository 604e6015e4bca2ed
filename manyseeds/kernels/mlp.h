// Multilayer perceptrons of a seed axis: S seeds, K networks each.
#pragma once
#include "vec.h"

enum { TANH, RELU };

// What all networks have in common.
typedef struct {
  int seeds, networks, layers, activation, threads;
  const int *sizes;    // [layers + 1]: inputs, hidden widths, columns of the last matrix
  const int *columns;  // [networks]: how many columns of the last matrix are used
  const float *const *parameters;  // [2 * layers]: weights [S, K, in, out] and biases [S, K, 1, out]
  const long *strides;             // [4 * layers]: of each, floats between seeds and networks
} networks;

// Floats that the hidden layers of a network put out per sample.
INLINE long width_of_hidden(const networks *m) {
  long total = 0;
  for (int l = 1; l < m->layers; l++) total += m->sizes[l];
  return total;
}

// Outputs y [B, columns[k]] of network k of seed s for x [B, sizes[0]]. hidden gets the outputs of
// its hidden layers, one after the other, each [B, width].
void network_forward(const networks *m, int s, int k, int B, const float *x, float *hidden,
                     float *y);
