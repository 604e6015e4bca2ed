// Action values that the outputs of one or two networks stand for: values, or distributions of returns
// by the probabilities of atoms or by quantiles. S seeds, B samples, A actions, Z outputs per action.
#pragma once
#include "mlp.h"

typedef struct {
  int S, A, Z;
  int categorical;      // outputs are logits of atoms; otherwise their mean counts
  const float *v_min;   // [S], the first atom
  const float *width;   // [S], between two atoms
} returns;

// log(sum exp(x)), and the softmax p of x, both [Z]; NaN where one is.
float softmax_of(long Z, const float *x, float *p);

// The mean of the return that outputs x [Z] stand for; p: memory [Z].
float mean_of_return(const returns *r, int s, const float *x, float *p);

// Outputs [B, A, Z] from those of a network and, of a second one (dueling), values [B, Z], which are
// overwritten: value + outputs - the mean of the outputs over all actions.
void add_values(const returns *r, long B, float *values, float *outputs);
