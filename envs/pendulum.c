// Pendulum-v1: one environment of pendulum.py.
#include <math.h>

#include "environment.h"
#include "functions.h"

#define GRAVITY 10.0
#define MASS 1.0
#define LENGTH 1.0  // of a rod, so that its moment of inertia is m l^2 / 3
#define TAU 0.05    // seconds between two states
#define MAX_SPEED 8.0f

enum { THETA, THETA_DOT, SIZE };

static void initial(const float *noise, float *physics) {
  physics[THETA] = (float)-M_PI + noise[0] * (float)(2 * M_PI);
  physics[THETA_DOT] = -1 + noise[1] * 2;
}

static void observe(const float *physics, float *observation) {
  sin_and_cos(physics[THETA], observation + 1, observation);
  observation[2] = physics[THETA_DOT];
}

static float step(float *physics, action chosen, const float *noise, int *terminated) {
  (void)noise;
  // Rounded to float once: what is left in double would make the arithmetic double, too.
  const float by_gravity = 3 * GRAVITY / (2 * LENGTH) * TAU, tau = TAU;  // over the inertia
  const float by_torque = 3 / (MASS * LENGTH * LENGTH) * TAU;
  const float circle = 2 * M_PI, turns = 1 / (2 * M_PI);

  const float torque = chosen.components[0];  // clipped to [-2, 2] already
  const float theta = physics[THETA], theta_dot = physics[THETA_DOT];
  const float angle = theta - circle * rintf(theta * turns);
  const float cost = angle * angle + 0.1f * theta_dot * theta_dot + 0.001f * torque * torque;
  float speed = theta_dot + by_gravity * sin_of(theta) + by_torque * torque;
  speed = clamp(speed, -MAX_SPEED, MAX_SPEED);
  physics[THETA] = theta + tau * speed;
  physics[THETA_DOT] = speed;
  *terminated = 0;
  return -cost;
}

const environment pendulum = {
    .physics = SIZE,
    .observation = 3,
    .initial_noise = SIZE,
    .transition_noise = 0,
    .initial = initial,
    .observe = observe,
    .step = step,
};
