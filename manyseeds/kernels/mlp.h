// Multilayer perceptrons of a seed axis: S seeds, K networks each.
#pragma once
#include "parallel.h"
#include "vec.h"

enum { TANH, RELU };

// What all networks have in common.
typedef struct {
  int seeds, networks, layers, activation, threads;
  int normalized;          // hidden layers, over their units, before the activation
  const int *sizes;    // [layers + 1]: inputs, hidden widths, columns of the last matrix
  const int *columns;  // [networks]: how many columns of the last matrix are used
  // [parameters_of(m)]: weights [S, K, in, out] and biases [S, K, 1, out] of each layer in turn; then
  // gains and shifts [S, K, 1, width] of each hidden layer in turn, where these are normalised
  const float *const *parameters;
  const long *strides;             // two of each: floats between seeds and networks
  // Gradients of a seed are flat [P], a network's behind those of the one before:
  const long *places;  // [parameters_of(m)]: where each parameter's begin in them
  long size;           // floats of a network, padding included
} networks;

// How many parameters a network has.
INLINE int parameters_of(const networks *m) {
  return 2 * m->layers + (m->normalized ? 2 * (m->layers - 1) : 0);
}

// Which is the gain of hidden layer l; the next is its shift.
INLINE int gain_of(const networks *m, int l) { return 2 * m->layers + 2 * l; }

// A matrix (i = 2 l) or bias (i = 2 l + 1) of layer l, or another parameter i, of network k of seed s.
INLINE const float *parameter(const networks *m, int i, int s, int k) {
  return m->parameters[i] + s * m->strides[2 * i] + k * m->strides[2 * i + 1];
}

// Floats that hidden layer l keeps per sample: its outputs; where it is normalised, also what its gain
// multiplies, and what that was scaled by.
INLINE long width_kept(const networks *m, int l) {
  return m->normalized ? 2 * m->sizes[l + 1] + 1 : m->sizes[l + 1];
}

// Floats that all hidden layers of a network keep per sample.
INLINE long width_of_hidden(const networks *m) {
  long total = 0;
  for (int l = 0; l < m->layers - 1; l++) total += width_kept(m, l);
  return total;
}

// The widest layer, whether it puts out or takes in.
INLINE long widest_of(const networks *m) {
  long widest = 0;
  for (int l = 0; l <= m->layers; l++) widest = m->sizes[l] > widest ? m->sizes[l] : widest;
  return widest;
}

// Samples that go through all layers together, so that what is between two layers stays in the
// cache.
enum { BLOCK = 128 };

enum { NARROW = 4 };  // columns of a product that leave a vector mostly empty

// Floats of scratch that network_forward needs.
INLINE long forward_scratch(const networks *m) {
  const int L = m->layers;
  return 2 * BLOCK * widest_of(m) + (long)m->sizes[L - 1] * m->sizes[L];
}

// Puts what network_forward needs of network k of seed s into scratch.
void prepare_forward(const networks *m, int s, int k, float *scratch);

// Outputs y [B, columns[k]] of network k of seed s for x [B, sizes[0]]. hidden [B width_of_hidden] gets
// what its hidden layers keep, one after the other: [B, width], and [B, width] and [B] where they are
// normalised; or is null. scratch: prepared for this network.
void network_forward(const networks *m, int s, int k, int B, const float *x, float *hidden,
                     float *scratch, float *y);

// Floats of scratch that network_backward needs.
INLINE long backward_scratch(const networks *m) {
  long size = (2 * BLOCK + NARROW) * widest_of(m);
  for (int l = 1; l < m->layers; l++) size += (long)m->sizes[l] * m->sizes[l + 1];
  return size;
}

// Gradients of the parameters of network k of seed s, from gy [B, columns[k]], that of its outputs;
// x, hidden: as network_forward had and left them. gradients: [parameters_of(m)], where those of this
// network go: weights [in, out], biases [1, out] and so on; 0 of columns that are not used.
void network_backward(const networks *m, int s, int k, int B, const float *x, const float *hidden,
                      const float *gy, float *const *gradients, float *scratch);

// Floats of scratch that network_input_gradient needs.
INLINE long input_gradient_scratch(const networks *m) {
  return backward_scratch(m) + (long)m->sizes[0] * m->sizes[1];
}

// The gradient gx [B, sizes[0]] of the inputs of network k of seed s, from gy [B, columns[k]], that
// of its outputs; hidden: as network_forward left it.
void network_input_gradient(const networks *m, int s, int k, int B, const float *hidden,
                            const float *gy, float *gx, float *scratch);

// Floats of scratch that network_tangent needs.
INLINE long tangent_scratch(const networks *m) {
  const int last = m->layers - 1, C = m->sizes[last + 1];
  return 2 * BLOCK * widest_of(m) + 2L * m->sizes[last] * C + (BLOCK + 1L) * C;
}

// What changes at the outputs y [B, columns[k]] of network k of seed s when its parameters change by
// tangents: their derivative. x, hidden, tangents: as x, hidden and gradients of network_backward.
void network_tangent(const networks *m, int s, int k, int B, const float *x, const float *hidden,
                     float *const *tangents, float *y, float *scratch);

// Where the gradients of network k go in those of a seed: to is [parameters_of(m)].
INLINE void gradients_in(const networks *m, int k, float *of_seed, float **to) {
  for (int i = 0; i < parameters_of(m); i++) to[i] = of_seed + m->places[i] + k * m->size;
}
