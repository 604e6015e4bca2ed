// Clipping and the steps of optimizers: every seed alone, its networks' parameters one after the
// other. A seed that the mask leaves out keeps everything as it was.
#include <math.h>
#include <stdlib.h>

#include "vec.h"

// What all optimizers work with.
typedef struct {
  int seeds, networks, count, threads;  // count: parameters of a module
  long size;                            // P / K, floats of a network, its padding included
  const long *sizes;                    // [count]: floats of a network's parameters
  const float *const *gradients;        // [count], each [S, K, sizes[i]]; null: zero
  const unsigned char *takes_step;      // [S]; null: all do
  const float *max_norm;                // [S]; 0: do not clip
  float *gathered;                      // [S, P], where the clipped gradients are put
  float *parameters;                    // [S, P]
  float *norms;                         // [S], before clipping
} step;

// Gathers a seed's gradients, clipped; returns whether the seed takes a step.
static int gather(const step *m, int s) {
  const long K = m->networks, P = K * m->size;
  float *row = m->gathered + s * P;
  vec squares = {0};
  for (int k = 0; k < K; k++) {
    float *to = row + k * m->size;
    for (int i = 0; i < m->count; i++) {
      const float *from = m->gradients[i];
      if (from) memcpy(to, from + (s * K + k) * m->sizes[i], m->sizes[i] * sizeof(float));
      else memset(to, 0, m->sizes[i] * sizeof(float));
      to += m->sizes[i];
    }
    memset(to, 0, (row + (k + 1) * m->size - to) * sizeof(float));  // the padding
  }
  for (long i = 0; i < P; i += WIDTH) {
    vec x = load(row + i);
    squares += x * x;
  }
  m->norms[s] = sqrtf(sum_of(squares));
  if (m->takes_step && !m->takes_step[s]) {
    memset(row, 0, P * sizeof(float));
    return 0;
  }
  if (m->max_norm[s] > 0) {
    float scale = m->max_norm[s] / (m->norms[s] + 1e-6f);
    if (!(scale >= 1))  // also where the norm is not a number
      for (long i = 0; i < P; i++) row[i] *= scale;
  }
  return 1;
}

// Adam (Kingma and Ba, 2015), both bias corrections moved into the step size. rates: [S], learning
// rates. mean, square: [S, P]. powers: [2, S], beta ** (steps taken).
void adam(const step *m, const double *rates, double beta1, double beta2, double eps, float *mean,
          float *square, double *powers) {
  const long P = m->networks * m->size;
#pragma omp parallel for schedule(static) num_threads(m->threads) if (m->threads > 1)
  for (int s = 0; s < m->seeds; s++) {
    if (!gather(m, s)) continue;
    double power1 = powers[s] *= beta1, power2 = powers[m->seeds + s] *= beta2;
    double correction = fmax(sqrt(1 - power2), 1e-12);
    float step_size = (float)(rates[s] * correction / (1 - power1));
    float small = (float)(eps * correction), weight1 = (float)(1 - beta1);
    float weight2 = (float)(1 - beta2);
    const float *restrict gradient = m->gathered + s * P;
    float *restrict first = mean + s * P, *restrict second = square + s * P;
    float *restrict parameter = m->parameters + s * P;
    for (long i = 0; i < P; i += WIDTH) {
      vec g = load(gradient + i), m1 = load(first + i), m2 = load(second + i);
      m1 += weight1 * (g - m1);
      m2 += weight2 * (g * g - m2);
      store(first + i, m1);
      store(second + i, m2);
      store(parameter + i, load(parameter + i) - step_size * (m1 / (root(m2) + small)));
    }
  }
}

// RMSprop (Tieleman and Hinton, 2012). under_root: eps is added under the root, as TensorFlow does.
void rmsprop(const step *m, const double *rates, double alpha, double eps, int under_root,
             float *square) {
  const long P = m->networks * m->size;
#pragma omp parallel for schedule(static) num_threads(m->threads) if (m->threads > 1)
  for (int s = 0; s < m->seeds; s++) {
    if (!gather(m, s)) continue;
    float rate = (float)rates[s], weight = (float)(1 - alpha), small = (float)eps;
    float inside = under_root ? small : 0, outside = under_root ? 0 : small;
    const float *restrict gradient = m->gathered + s * P;
    float *restrict second = square + s * P, *restrict parameter = m->parameters + s * P;
    for (long i = 0; i < P; i += WIDTH) {
      vec g = load(gradient + i), m2 = load(second + i);
      m2 += weight * (g * g - m2);
      store(second + i, m2);
      store(parameter + i, load(parameter + i) - rate * (g / (root(m2 + inside) + outside)));
    }
  }
}
