// What algorithms with action-value critics share: the lesser of two values, and targets that follow.
#pragma once
#include <math.h>

#include "mlp.h"

// Or NaN, if one of them is: b is taken where the comparison is false.
INLINE float lesser(float a, float b) { return a < b || a != a ? a : b; }

// The derivative of the lesser one by a: half of it where they are equal, NaN as above.
INLINE float share_of(float a, float b) { return a < b ? 1 : a > b ? 0 : a == b ? 0.5f : NAN; }

// Q_target <- tau Q + (1 - tau) Q_target, of all networks of seed s.
INLINE void follow(const networks *target, const networks *source, int s, float tau) {
  const float rest = 1 - tau;
  for (int i = 0; i < 2 * source->layers; i++) {
    const long size = (i % 2 ? 1L : source->sizes[i / 2]) * source->sizes[i / 2 + 1];
    for (int k = 0; k < source->networks; k++) {
      float *old = (float *)parameter(target, i, s, k);
      const float *new = parameter(source, i, s, k);
      for (long j = 0; j < size; j++) old[j] = tau * new[j] + rest * old[j];
    }
  }
}
