// Statistics of one seed's numbers, summed up in their order in double.
#include "statistics.h"

#include <math.h>

#include "environment.h"
#include "parallel.h"

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

// ---- Running statistics --------------------------------------------------------------------

// Adds samples to the mean and variance of all that each seed has seen (Chan et al., 1983).
struct running_stats {
  int S, size, threads;
  long B;
  const float *x;             // [S, B, size]
  const unsigned char *mask;  // [S, B], which samples count; null: all
  double *mean, *var;         // [S, size]
  double *count;              // [S]
};

static void stats_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct running_stats *a = given;
  const long B = a->B, size = a->size;
  const float *x = a->x + s * B * size;
  const unsigned char *mask = a->mask ? a->mask + s * B : 0;
  double *means = a->mean + s * size, *vars = a->var + s * size;
  double n = 0;
  for (long i = 0; i < B; i++) n += !mask || mask[i];
  if (n == 0) return;
  const double total = a->count[s] + n, share = n / total;
  for (long k = 0; k < size; k++) {
    double mean = 0, var = 0;
    for (long i = 0; i < B; i++)
      if (!mask || mask[i]) mean += x[i * size + k];
    mean /= n;
    for (long i = 0; i < B; i++)
      if (!mask || mask[i]) var += (x[i * size + k] - mean) * (x[i * size + k] - mean);
    var /= n;
    const double delta = mean - means[k];
    vars[k] = (1 - share) * vars[k] + share * var + share * (1 - share) * delta * delta;
    means[k] += share * delta;
  }
  a->count[s] = total;
}

int running_stats(const struct running_stats *x) {
  return for_each(x->S, x->threads, 0, stats_of_seed, x);
}

// Rewards divided by the standard deviation of the discounted return up to their own step.
struct reward_scale {
  int S, T, N, threads;
  const float *rewards;       // [S, T, N]
  const unsigned char *done;  // [S, T, N]
  const float *gamma;         // [S]
  float *open_return;         // [S, N], of the unfinished episodes
  double *mean, *var, *count;  // [S]
  float *scaled;              // [S, T, N]
};

static void scale_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct reward_scale *x = given;
  const double seen = x->count[s], start = x->mean[s], squares_before = seen * x->var[s];
  float *open = x->open_return + (long)s * x->N;
  double sum = 0, squares = 0, mean = 0, var = x->var[s], count = seen;
  for (int t = 0; t < x->T; t++) {
    const long first = ((long)s * x->T + t) * x->N;
    for (long n = 0; n < x->N; n++) {
      open[n] = open[n] * x->gamma[s] + x->rewards[first + n];
      const double deviation = open[n] - start;  // relative to the mean before
      sum += deviation;
      squares += deviation * deviation;
      if (x->done[first + n]) open[n] = 0;
    }
    count += x->N;
    mean = sum / count;
    var = (squares_before + squares) / count - mean * mean;
    if (var < 0) var = 0;
    const float scale = (float)(1 / sqrt(var + 1e-8));
    for (long n = 0; n < x->N; n++)
      x->scaled[first + n] = clamp(x->rewards[first + n] * scale, -10, 10);
  }
  x->mean[s] += mean;
  x->var[s] = var;
  x->count[s] = count;
}

int reward_scale(const struct reward_scale *x) {
  return for_each(x->S, x->threads, 0, scale_of_seed, x);
}
