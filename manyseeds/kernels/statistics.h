// Statistics of one seed's numbers, summed up in their order in double.
#pragma once

double mean_of(long n, const float *x);

// Of a sample: divided by n - 1. NaN for one number.
double variance_of(long n, const float *x);

// 1 - Var(returns - values) / Var(returns).
float explained_variance_of(long n, const float *values, const float *returns);

// What advantages are shifted and scaled by: to mean 0 and standard deviation 1 (ddof 1).
void normalizer_of(long n, const float *x, float *shift, float *scale);
