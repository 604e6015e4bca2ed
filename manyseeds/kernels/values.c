// Action values that the outputs of networks stand for (values.h).
#include "values.h"

#include "functions.h"

float softmax_of(long Z, const float *x, float *p) {
  float most = x[0], total = 0;
  for (long z = 1; z < Z; z++) most = x[z] > most ? x[z] : most;
  for (long z = 0; z < Z; z++) p[z] = x[z] - most;
  exp_of_all(Z, p, p);
  for (long z = 0; z < Z; z++) total += p[z];
  for (long z = 0; z < Z; z++) p[z] /= total;
  return most + log_of_one(total);
}

float mean_of_return(const returns *r, int s, const float *x, float *p) {
  float total = 0;
  if (r->categorical) {
    softmax_of(r->Z, x, p);
    for (int z = 0; z < r->Z; z++) total += p[z] * (r->v_min[s] + r->width[s] * (float)z);
    return total;
  }
  for (int z = 0; z < r->Z; z++) total += x[z];
  return total / (float)r->Z;
}

void add_values(const returns *r, long B, float *values, float *outputs) {
  const long A = r->A, Z = r->Z;
  for (long i = 0; i < B; i++) {
    float *own = outputs + i * A * Z, *value = values + i * Z;
    for (long z = 0; z < Z; z++) {
      float total = 0;
      for (long a = 0; a < A; a++) total += own[a * Z + z];
      value[z] -= total / (float)A;
    }
    for (long a = 0; a < A; a++)
      for (long z = 0; z < Z; z++) own[a * Z + z] += value[z];
  }
}
