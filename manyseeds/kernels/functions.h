// Functions that C's library computes differently on different machines, for vectors and numbers.
//
// Polynomials and reductions after Cephes (Moshier, 1989), each product and sum rounded as written:
// the same bits on every machine. Errors are the largest that were found over all floats.
#pragma once
#include <math.h>

#include "vec.h"

// a x + b of a polynomial.
#define HORNER(sum, x, coefficient) sum = plus_product(all(coefficient), sum, x)

// tanh by the best rational function of its degrees, within 4e-7 of it, nearly all of it rounding.
INLINE vec tanh_of(vec x) {
  x = clamp_to(x, 7.9f);  // beyond it the quotient may exceed 1
  const vec x2 = x * x;
  vec p = all(0.01792912f), q = x2 + 398.584503f;
  HORNER(p, x2, 25.6275139f);
  HORNER(p, x2, 4168.14062f);
  HORNER(p, x2, 156707.234f);
  HORNER(p, x2, 1165184.25f);
  HORNER(q, x2, 30510.9902f);
  HORNER(q, x2, 545101.938f);
  HORNER(q, x2, 1165184.25f);
  return x * p / q;
}

// exp; within 1 ulp, of results below 2^-126 within 1 ulp of theirs.
INLINE vec exp_of(vec x) {
  const float whole = 12582912;  // 1.5 * 2^23: what is added to it is rounded to an integer
  x = choose(x > all(89), all(89), choose(x < all(-104), all(-104), x));  // NaN stays
  const vec shifted = plus_product(all(whole), x, all(1.44269504f)), n = shifted - whole;
  vec r = plus_product(x, n, all(-0.693359375f));
  r = plus_product(r, n, all(2.12194440e-4f));
  vec p = all(1.9875691500e-4f);
  HORNER(p, r, 1.3981999507e-3f);
  HORNER(p, r, 8.3334519073e-3f);
  HORNER(p, r, 4.1665795894e-2f);
  HORNER(p, r, 1.6666665459e-1f);
  HORNER(p, r, 5.0000001201e-1f);
  p = plus_product(r, p, r * r) + 1;
  // 2^n in two factors, each a normal number.
  const mask exponent = (mask)shifted - 0x4b400000, half = exponent >> 1;
  return p * (vec)((half + 127) << 23) * (vec)((exponent - half + 127) << 23);
}

// The natural logarithm, within 1 ulp; NaN below 0.
INLINE vec log_of(vec x) {
  const mask tiny = (x < all(1.17549435e-38f)) & (x > all(0));
  const vec given = x;
  x = choose(tiny, x * 8388608, x);
  // x = m 2^e, m in [sqrt(1/2), sqrt(2)).
  const mask bits = (mask)x - 0x3f3504f3;
  const mask exponent = bits >> 23;
  const vec m = (vec)((bits & 0x7fffff) + 0x3f3504f3) - 1;
  const vec e = __builtin_convertvector(exponent, vec) - choose(tiny, all(23), all(0));
  const vec m2 = m * m;
  vec p = all(7.0376836292e-2f);
  HORNER(p, m, -1.1514610310e-1f);
  HORNER(p, m, 1.1676998740e-1f);
  HORNER(p, m, -1.2420140846e-1f);
  HORNER(p, m, 1.4249322787e-1f);
  HORNER(p, m, -1.6668057665e-1f);
  HORNER(p, m, 2.0000714765e-1f);
  HORNER(p, m, -2.4999993993e-1f);
  HORNER(p, m, 3.3333331174e-1f);
  vec y = m * m2 * p;
  y = plus_product(y, e, all(-2.12194440e-4f));
  y = plus_product(y, m2, all(-0.5f));
  y = plus_product(m + y, e, all(0.693359375f));
  const mask usual = (given > all(0)) & (given < all(INFINITY));
  const vec other = choose(given == all(0), all(-INFINITY),
                           choose(given > all(0), given, all(NAN)));
  return choose(usual, y, other);
}

// tanh that ends at 1 where that is the nearest float: a saturated action stays where it is.
INLINE float action_tanh(float x) {
  return x > 9.0109f ? 1 : x < -9.0109f ? -1 : tanh_of(all(x))[0];  // NaN stays
}

INLINE float exp_of_one(float x) { return exp_of(all(x))[0]; }
INLINE float log_of_one(float x) { return log_of(all(x))[0]; }

// Of n numbers, in place or not.
INLINE void exp_of_all(long n, const float *x, float *y) {
  for (long i = 0; i < n; i += WIDTH) store_up_to(y + i, exp_of(load_up_to(x + i, n - i)), n - i);
}

INLINE void log_of_all(long n, const float *x, float *y) {
  for (long i = 0; i < n; i += WIDTH) store_up_to(y + i, log_of(load_up_to(x + i, n - i)), n - i);
}

// sin and cos, computed in double and rounded: within 0.51 ulp for |x| up to 1e9.
INLINE void sin_and_cos(float given, float *sine, float *cosine) {
  const double whole = 6755399441055744;  // 1.5 * 2^52, as above
  const double x = given, shifted = __builtin_fma(x, 0.63661977236758134, whole);
  const double n = shifted - whole;
  double r = __builtin_fma(n, -1.5707963267948966, x);
  r = __builtin_fma(n, -6.123233995736766e-17, r);
  const double r2 = r * r;
  double s = 1.58962301576546568060e-10, c = -1.13585365213876817300e-11;
  s = __builtin_fma(s, r2, -2.50507477628578072866e-8);
  s = __builtin_fma(s, r2, 2.75573136213857245213e-6);
  s = __builtin_fma(s, r2, -1.98412698295895385996e-4);
  s = __builtin_fma(s, r2, 8.33333333332211858878e-3);
  s = __builtin_fma(s, r2, -1.66666666666666307295e-1);
  s = __builtin_fma(s * r2, r, r);
  c = __builtin_fma(c, r2, 2.08757008419747316778e-9);
  c = __builtin_fma(c, r2, -2.75573141792967388112e-7);
  c = __builtin_fma(c, r2, 2.48015872888517045348e-5);
  c = __builtin_fma(c, r2, -1.38888888888730564116e-3);
  c = __builtin_fma(c, r2, 4.16666666666665929218e-2);
  c = __builtin_fma(c * r2, r2, __builtin_fma(r2, -0.5, 1));
  uint64_t quadrant;
  memcpy(&quadrant, &shifted, sizeof quadrant);
  const double first = quadrant & 1 ? c : s, second = quadrant & 1 ? s : c;
  *sine = (float)(quadrant & 2 ? -first : first);
  *cosine = (float)((quadrant + 1) & 2 ? -second : second);
}

INLINE float sin_of(float x) {
  float s, c;
  sin_and_cos(x, &s, &c);
  return s;
}

INLINE float cos_of(float x) {
  float s, c;
  sin_and_cos(x, &s, &c);
  return c;
}
