// Random variables from uniforms in [0, 1), and orthogonal matrices from normals; S seeds.
#include <float.h>
#include <math.h>

#include "functions.h"
#include "parallel.h"

// Standard Gumbel variables in the place of uniforms; finite, also of 0.
struct gumbel {
  int S, threads;
  long n;
  float *x;  // [S, n]
};

static void gumbel_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct gumbel *a = given;
  float *x = a->x + s * a->n;
  for (long i = 0; i < a->n; i += WIDTH) {
    const vec y = -log_of(-log_of(load_up_to(x + i, a->n - i)));
    store_up_to(x + i, choose(y < all(-FLT_MAX), all(-FLT_MAX), y), a->n - i);
  }
}

int gumbel(const struct gumbel *x) { return for_each(x->S, x->threads, 0, gumbel_of_seed, x); }

// Standard normals (Box and Muller, 1958): two from two uniforms.
struct normal {
  int S, threads;
  long n, pairs;          // pairs: half of n, rounded up
  const float *uniforms;  // [S, 2, pairs]
  float *normals;         // [S, n]
};

static void normal_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct normal *a = given;
  const float *radii = a->uniforms + s * 2 * a->pairs, *angles = radii + a->pairs;
  float *x = a->normals + s * a->n;
  for (long i = 0; i < a->pairs; i++) {
    const float radius = sqrtf(-2 * log_of_one(1 - radii[i]));
    float sine, cosine;
    sin_and_cos((float)(2 * M_PI) * angles[i], &sine, &cosine);
    x[i] = radius * cosine;
    if (a->pairs + i < a->n) x[a->pairs + i] = radius * sine;
  }
}

int normal(const struct normal *x) { return for_each(x->S, x->threads, 0, normal_of_seed, x); }

// The Q of QR = a matrix whose columns are at least as long as they are many, R's diagonal positive:
// Gram and Schmidt's, twice, in double.
struct orthogonal {
  int S, rows, columns, threads;
  const float *matrices;  // [S, rows, columns]
  float *q;               // [S, rows, columns]
};

static void orthogonal_of_seed(const void *given, int s, float *scratch) {
  const struct orthogonal *a = given;
  const long n = a->rows, m = a->columns, first = s * n * m;
  double *q = (double *)scratch;  // [columns, rows]
  for (long j = 0; j < m; j++) {
    double *x = q + j * n, square = 0;
    for (long i = 0; i < n; i++) x[i] = a->matrices[first + i * m + j];
    for (int pass = 0; pass < 2; pass++)
      for (long k = 0; k < j; k++) {
        double along = 0;
        for (long i = 0; i < n; i++) along += q[k * n + i] * x[i];
        for (long i = 0; i < n; i++) x[i] -= along * q[k * n + i];
      }
    for (long i = 0; i < n; i++) square += x[i] * x[i];
    for (long i = 0; i < n; i++) x[i] /= sqrt(square);
    for (long i = 0; i < n; i++) a->q[first + i * m + j] = (float)x[i];
  }
}

int orthogonal(const struct orthogonal *x) {
  return for_each(x->S, x->threads, 2L * x->rows * x->columns, orthogonal_of_seed, x);
}
