// Statistics of one seed's numbers, summed up in their order in double.
#include "statistics.h"

#include <math.h>

double mean_of(long n, const float *x) {
  double total = 0;
  for (long i = 0; i < n; i++) total += x[i];
  return total / (double)n;
}

double variance_of(long n, const float *x) {
  const double mean = mean_of(n, x);
  double squares = 0;
  for (long i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
  return squares / (double)(n - 1);
}

float explained_variance_of(long n, const float *values, const float *returns) {
  double total = 0, squares = 0;
  for (long i = 0; i < n; i++) total += (double)returns[i] - values[i];
  const double mean = total / (double)n;
  for (long i = 0; i < n; i++) {
    const double deviation = (double)returns[i] - values[i] - mean;
    squares += deviation * deviation;
  }
  return (float)(1 - squares / (double)(n - 1) / variance_of(n, returns));
}

void normalizer_of(long n, const float *x, float *shift, float *scale) {
  *shift = (float)mean_of(n, x);
  *scale = (float)(1 / (sqrt(variance_of(n, x)) + 1e-8));
}
