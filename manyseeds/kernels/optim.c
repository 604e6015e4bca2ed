// Clipping and the steps of optimizers: what manyseeds/optim.py says.
#include "optim.h"

#include <math.h>

#include "parallel.h"

// Moments below it count as 0, as under a square root beside eps they do: those of a unit whose
// gradient stays 0 would end in numbers next to 0, with which a CPU computes many times more slowly.
static const float TINY = 1e-30f;

INLINE vec without_tiny(vec x) { return choose(size_of(x) < all(TINY), all(0), x); }

float norm_of(long P, const float *gradients) { return sqrtf(dot_of(P, gradients, gradients)); }

// Liu et al. (2020): what Adam's step is multiplied by, for an average of squares of as many gradients
// as were seen; 0: of too few.
static double rectifier(double beta2, double steps, double power2) {
  const double limit = 2 / (1 - beta2) - 1, length = limit - 2 * steps * power2 / (1 - power2);
  if (!(length > 5)) return 0;
  return sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length));
}

// Kingma and Ba (2015), both bias corrections moved into the step size.
static void adam(const optimizer *o, int s, const float *gradients, float scale) {
  double power1 = o->powers[s] *= o->beta1, power2 = o->powers[o->S + s] *= o->beta2;
  const double correction = sqrt(1 - power2);
  double factor = correction;
  if (o->kind == RADAM) factor *= rectifier(o->beta2, o->steps[s] += 1, power2);
  const int scaled = factor > 0;  // otherwise the step is the mean gradient
  const float step_size = (float)(o->rates[s] * (scaled ? factor : 1) / (1 - power1));
  const vec small = all((float)(o->eps * correction));
  const vec weight1 = all((float)(1 - o->beta1)), weight2 = all((float)(1 - o->beta2));
  float *parameters = o->parameters + s * o->P;
  float *mean = o->mean + s * o->P, *square = o->square + s * o->P;
  for (long i = 0; i < o->P; i += WIDTH) {
    const vec x = load(gradients + i) * scale, m1 = load(mean + i), m2 = load(square + i);
    const vec first = without_tiny(plus_product(m1, weight1, x - m1));
    const vec second = without_tiny(plus_product(m2, weight2, plus_product(-m2, x, x)));
    store(mean + i, first);
    store(square + i, second);
    const vec change = scaled ? first / (root(second) + small) : first;
    store(parameters + i, plus_product(load(parameters + i), all(-step_size), change));
  }
}

// Tieleman and Hinton (2012). TF: eps is added under the root, as TensorFlow does.
static void rmsprop(const optimizer *o, int s, const float *gradients, float scale) {
  const float small = (float)o->eps, rate = (float)o->rates[s];
  const float inside = o->kind == RMSPROP_TF ? small : 0, outside = small - inside;
  const vec weight = all((float)(1 - o->beta2));
  float *parameters = o->parameters + s * o->P, *square = o->square + s * o->P;
  for (long i = 0; i < o->P; i += WIDTH) {
    const vec x = load(gradients + i) * scale, m2 = load(square + i);
    const vec second = without_tiny(plus_product(m2, weight, plus_product(-m2, x, x)));
    store(square + i, second);
    const vec change = x / (root(second + inside) + outside);
    store(parameters + i, plus_product(load(parameters + i), all(-rate), change));
  }
}

float optimizer_step(const optimizer *o, int s, const float *gradients) {
  const float norm = norm_of(o->P, gradients), limit = o->max_norm[s];
  float scale = limit > 0 ? limit / (norm + 1e-6f) : 1;
  if (scale > 1) scale = 1;  // NaN where the norm is
  if (o->kind == ADAM || o->kind == RADAM) adam(o, s, gradients, scale);
  else rmsprop(o, s, gradients, scale);
  return norm;
}

// A step by the gradients of a module's parameters, count of them, wherever they are.
struct step {
  int S, K, count, threads;
  const optimizer *optimizer;
  const float *const *gradients;  // [count] of [S, K, size]; null: zero
  const int64_t *sizes;           // of count, floats of a network's parameter
  const int64_t *strides;         // of 2 count, floats between the gradients of seeds and networks
  const unsigned char *mask;      // [S]; false: this seed stays as it is; null: all move
  float *norms;                   // [S], before clipping
};

static void step_of_seed(const void *given, int s, float *scratch) {
  const struct step *x = given;
  const optimizer *o = x->optimizer;
  const long size = o->P / x->K;  // of a network, its padding included
  memset(scratch, 0, sizeof(float) * o->P);
  for (int k = 0; k < x->K; k++) {
    float *to = scratch + k * size;
    for (int i = 0; i < x->count; to += x->sizes[i], i++) {
      const long from = s * x->strides[i] + k * x->strides[x->count + i];
      if (x->gradients[i]) memcpy(to, x->gradients[i] + from, sizeof(float) * x->sizes[i]);
    }
  }
  x->norms[s] = x->mask && !x->mask[s] ? norm_of(o->P, scratch) : optimizer_step(o, s, scratch);
}

int step(const struct step *x) {
  return for_each(x->S, x->threads, x->optimizer->P, step_of_seed, x);
}
