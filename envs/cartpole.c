// CartPole-v1: one environment of cartpole.py, which explains the equations.
#include <math.h>

#include "environment.h"
#include "functions.h"

#define GRAVITY 9.8
#define MASS_POLE 0.1
#define MASS_TOTAL 1.1
#define LENGTH 0.5  // half the length of the pole
#define POLE_MOMENT (MASS_POLE * LENGTH)
#define FORCE 10.0
#define TAU 0.02  // seconds between two states
#define X_LIMIT 2.4
#define INERTIA_OF_POLE (-LENGTH * MASS_POLE / MASS_TOTAL / GRAVITY)
#define THETA_LIMIT (12 * 2 * M_PI / 360)

enum { X, X_DOT, THETA, THETA_DOT, SIZE };

static void initial(const float *noise, float *physics) {
  for (int i = 0; i < SIZE; i++) physics[i] = noise[i] * 0.1f - 0.05f;
}

static void observe(const float *physics, float *observation) {
  for (int i = 0; i < SIZE; i++) observation[i] = physics[i];
}

static float step(float *physics, action chosen, const float *noise, int *terminated) {
  (void)noise;
  // Rounded to float once: what is left in double would make the arithmetic double, too.
  const float tau = TAU, force = FORCE / MASS_TOTAL, pole = POLE_MOMENT / MASS_TOTAL;
  const float gravity = 1 / GRAVITY, at_rest = 4 * LENGTH / 3 / GRAVITY;
  const float inertia_of_pole = INERTIA_OF_POLE, x_limit = X_LIMIT, theta_limit = THETA_LIMIT;

  const float x_dot = physics[X_DOT], theta_dot = physics[THETA_DOT];
  float sintheta, costheta;
  sin_and_cos(physics[THETA], &sintheta, &costheta);
  const float temp = (chosen.index == 1 ? force : -force) + pole * (theta_dot * theta_dot) * sintheta;
  const float inertia = at_rest + inertia_of_pole * costheta * costheta;
  const float thetaacc = (sintheta - gravity * costheta * temp) / inertia;
  const float xacc = temp - pole * thetaacc * costheta;
  physics[X] += tau * x_dot;
  physics[X_DOT] += tau * xacc;
  physics[THETA] += tau * theta_dot;
  physics[THETA_DOT] += tau * thetaacc;
  *terminated = fabsf(physics[X]) > x_limit || fabsf(physics[THETA]) > theta_limit;
  return 1;
}

const environment cartpole = {
    .physics = SIZE,
    .observation = SIZE,
    .initial_noise = SIZE,
    .transition_noise = 0,
    .initial = initial,
    .observe = observe,
    .step = step,
};
