// Clipping and the steps of optimizers: every seed alone, its networks' parameters one after the
// other. A seed that the mask leaves out keeps everything as it was.
#include <math.h>

#include "parallel.h"
#include "vec.h"

// What all optimizers work with.
typedef struct {
  int seeds, networks, count, threads;  // count: parameters of a module
  long size;                            // P / K, floats of a network, its padding included
  const long *sizes;                    // [count]: floats of a network's parameters
  const float *const *gradients;        // [count], each [S, K, sizes[i]]; null: zero
  const unsigned char *takes_step;      // [S]; null: all do
  const float *max_norm;                // [S]; 0: do not clip
  float *parameters;                    // [S, P]
  float *norms;                         // [S], before clipping
} step;

// Where parameter i of network k of seed s has its gradient, or null.
INLINE const float *gradient_of(const step *m, int s, int k, int i) {
  const float *all = m->gradients[i];
  return all ? all + ((long)s * m->networks + k) * m->sizes[i] : 0;
}

// What a seed's gradients are to be scaled by so that their norm is at most max_norm.
static float clip(const step *m, int s) {
  vec squares = {0};
  for (int k = 0; k < m->networks; k++)
    for (int i = 0; i < m->count; i++) {
      const float *g = gradient_of(m, s, k, i);
      if (!g) continue;
      for (long j = 0; j < m->sizes[i]; j += WIDTH) {
        vec x = load_up_to(g + j, m->sizes[i] - j);
        squares += x * x;
      }
    }
  m->norms[s] = sqrtf(sum_of(squares));
  if (!(m->max_norm[s] > 0)) return 1;
  float scale = m->max_norm[s] / (m->norms[s] + 1e-6f);
  return scale >= 1 ? 1 : scale;  // NaN where the norm is
}

// What a step computes with, beside that.
typedef struct {
  const step *m;
  const double *rates;
  double beta1, beta2, eps;  // RMSprop: alpha in the place of beta2
  int under_root;
  float *mean, *square;
  double *powers;
} call;

static void adam_one(const void *given, int s, float *scratch) {
  (void)scratch;
  const call *c = given;
  const step *m = c->m;
  const long P = m->networks * m->size;
  const float scale = clip(m, s);
  if (m->takes_step && !m->takes_step[s]) return;
  double power1 = c->powers[s] *= c->beta1, power2 = c->powers[m->seeds + s] *= c->beta2;
  double correction = sqrt(1 - power2);
  float step_size = (float)(c->rates[s] * correction / (1 - power1));
  float small = (float)(c->eps * correction), weight1 = (float)(1 - c->beta1);
  float weight2 = (float)(1 - c->beta2);
  for (int k = 0; k < m->networks; k++) {
    long at = s * P + k * m->size;
    for (int i = 0; i < m->count; at += m->sizes[i], i++) {
      const float *g = gradient_of(m, s, k, i);
      float *parameter = m->parameters + at, *first = c->mean + at, *second = c->square + at;
      for (long j = 0; j < m->sizes[i]; j += WIDTH) {
        const long left = m->sizes[i] - j;
        vec x = g ? load_up_to(g + j, left) * scale : (vec){0};
        vec m1 = load_up_to(first + j, left), m2 = load_up_to(second + j, left);
        m1 += weight1 * (x - m1);
        m2 += weight2 * (x * x - m2);
        store_up_to(first + j, m1, left);
        store_up_to(second + j, m2, left);
        vec moved = load_up_to(parameter + j, left) - step_size * (m1 / (root(m2) + small));
        store_up_to(parameter + j, moved, left);
      }
    }
  }
}

// Adam (Kingma and Ba, 2015), both bias corrections moved into the step size. rates: [S], learning
// rates. mean, square: [S, P]. powers: [2, S], beta ** (steps taken). Returns 1 without memory.
int adam(const step *m, const double *rates, double beta1, double beta2, double eps, float *mean,
         float *square, double *powers) {
  const call given = {m, rates, beta1, beta2, eps, 0, mean, square, powers};
  return for_each(m->seeds, m->threads, 0, adam_one, &given);
}

static void rmsprop_one(const void *given, int s, float *scratch) {
  (void)scratch;
  const call *c = given;
  const step *m = c->m;
  const long P = m->networks * m->size;
  const float scale = clip(m, s);
  if (m->takes_step && !m->takes_step[s]) return;
  float rate = (float)c->rates[s], weight = (float)(1 - c->beta2), small = (float)c->eps;
  float inside = c->under_root ? small : 0, outside = c->under_root ? 0 : small;
  for (int k = 0; k < m->networks; k++) {
    long at = s * P + k * m->size;
    for (int i = 0; i < m->count; at += m->sizes[i], i++) {
      const float *g = gradient_of(m, s, k, i);
      float *parameter = m->parameters + at, *second = c->square + at;
      for (long j = 0; j < m->sizes[i]; j += WIDTH) {
        const long left = m->sizes[i] - j;
        vec x = g ? load_up_to(g + j, left) * scale : (vec){0};
        vec m2 = load_up_to(second + j, left);
        m2 += weight * (x * x - m2);
        store_up_to(second + j, m2, left);
        vec moved = load_up_to(parameter + j, left) - rate * (x / (root(m2 + inside) + outside));
        store_up_to(parameter + j, moved, left);
      }
    }
  }
}

// RMSprop (Tieleman and Hinton, 2012). under_root: eps is added under the root, as TensorFlow does.
// Returns 1 without memory.
int rmsprop(const step *m, const double *rates, double alpha, double eps, int under_root,
            float *square) {
  const call given = {m, rates, 0, alpha, eps, under_root, 0, square, 0};
  return for_each(m->seeds, m->threads, 0, rmsprop_one, &given);
}
