// Optimizers over the flat parameters of a seed axis: every seed alone.
#pragma once
#include "vec.h"

enum { ADAM, RMSPROP, RMSPROP_TF, RADAM };

typedef struct {
  int S, kind;
  long P;                    // floats of a seed, a multiple of LANES
  float *parameters;         // [S, P]
  float *mean;               // [S, P]; null: not Adam
  float *square;             // [S, P]
  double *powers;            // [2, S], beta ** (steps taken); null: not Adam
  double *steps;             // [S], taken; null: not RAdam
  const double *rates;       // [S], learning rates
  const float *max_norm;     // [S]; 0: do not clip
  double beta1, beta2, eps;  // RMSprop: alpha in the place of beta2
} optimizer;

// A step of seed s by its gradients [P], which are clipped first. Returns their norm before that.
float optimizer_step(const optimizer *o, int s, const float *gradients);

// The norm of one seed's gradients [P].
float norm_of(long P, const float *gradients);
