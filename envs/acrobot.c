// Acrobot-v1: one environment of acrobot.py, which explains the equations.
#include <math.h>

#include "environment.h"
#include "functions.h"

#define GRAVITY 9.8
#define MASS 1.0  // of either link
#define LENGTH 1.0
#define CENTRE 0.5  // from a link's joint to its centre of mass
#define MOMENT 1.0  // of inertia of either link, about its centre of mass
#define TORQUE 1.0
#define TAU 0.2  // seconds between two states
#define MAX_SPEED_1 (4 * M_PI)
#define MAX_SPEED_2 (9 * M_PI)
#define INERTIA_1 (MOMENT + MASS * CENTRE * CENTRE + MASS * LENGTH * LENGTH)
#define INERTIA_2 (MOMENT + MASS * CENTRE * CENTRE)
#define COUPLING (MASS * LENGTH * CENTRE)
#define WEIGHT_1 ((MASS * CENTRE + MASS * LENGTH) * GRAVITY)
#define WEIGHT_2 (MASS * CENTRE * GRAVITY)

enum { THETA1, THETA2, THETA1_DOT, THETA2_DOT, SIZE };  // of a state

// The links by their angles against the vertical, or the derivative of these numbers.
typedef struct {
  float theta, phi, theta_dot, phi_dot;
} links;

// a + scale b.
static links add(links a, links b, float scale) {
  return (links){a.theta + scale * b.theta, a.phi + scale * b.phi,
                 a.theta_dot + scale * b.theta_dot, a.phi_dot + scale * b.phi_dot};
}

// With the accelerations of both links by the torque.
static links derivative(links x, float push_1, float push_2) {
  // Rounded to float once: what is left in double would make the arithmetic double, too.
  const float weight_1 = WEIGHT_1 / INERTIA_1, weight_2 = WEIGHT_2 / INERTIA_2;
  const float coupling_1 = COUPLING / INERTIA_1, coupling_2 = COUPLING / INERTIA_2;
  const float coupling_both = COUPLING * COUPLING / INERTIA_1 / INERTIA_2;

  float sin, cos;
  sin_and_cos(x.phi - x.theta, &sin, &cos);
  // The right sides, each divided by its own inertia.
  float right_1 = push_1 - weight_1 * sin_of(x.theta);
  float right_2 = push_2 - weight_2 * sin_of(x.phi);
  right_1 += coupling_1 * sin * (x.phi_dot * x.phi_dot);
  right_2 -= coupling_2 * sin * (x.theta_dot * x.theta_dot);
  // Cramer's rule.
  const float determinant = 1 - coupling_both * cos * cos;
  return (links){x.theta_dot, x.phi_dot, (right_1 - coupling_1 * cos * right_2) / determinant,
                 (right_2 - coupling_2 * cos * right_1) / determinant};
}

// An angle in [-pi, pi].
static float wrap(float angle) {
  const float circle = 2 * M_PI, turns = 1 / (2 * M_PI);
  return angle - rintf(angle * turns) * circle;
}

static void initial(const float *noise, float *physics) {
  for (int i = 0; i < SIZE; i++) physics[i] = noise[i] * 0.2f - 0.1f;
}

static void observe(const float *physics, float *observation) {
  sin_and_cos(physics[THETA1], observation + 1, observation);
  sin_and_cos(physics[THETA2], observation + 3, observation + 2);
  observation[4] = physics[THETA1_DOT];
  observation[5] = physics[THETA2_DOT];
}

static float step(float *physics, action chosen, const float *noise, int *terminated) {
  (void)noise;
  const float upper = TORQUE / INERTIA_1, lower = TORQUE / INERTIA_2, tau = TAU;
  const float max_speed_1 = MAX_SPEED_1, max_speed_2 = MAX_SPEED_2;

  const float direction = (float)(chosen.index - 1);
  const float push_1 = -upper * direction, push_2 = lower * direction;
  links x = {physics[THETA1], physics[THETA1] + physics[THETA2], physics[THETA1_DOT],
             physics[THETA1_DOT] + physics[THETA2_DOT]};
  // Runge-Kutta of fourth order.
  const links k1 = derivative(x, push_1, push_2);
  const links k2 = derivative(add(x, k1, tau / 2), push_1, push_2);
  const links k3 = derivative(add(x, k2, tau / 2), push_1, push_2);
  const links k4 = derivative(add(x, k3, tau), push_1, push_2);
  x = add(x, add(add(k1, k4, 1), add(k2, k3, 1), 2), tau / 6);

  physics[THETA1] = wrap(x.theta);
  physics[THETA2] = wrap(x.phi - x.theta);
  physics[THETA1_DOT] = clamp(x.theta_dot, -max_speed_1, max_speed_1);
  physics[THETA2_DOT] = clamp(x.phi_dot - x.theta_dot, -max_speed_2, max_speed_2);
  *terminated = cos_of(physics[THETA1]) + cos_of(physics[THETA1] + physics[THETA2]) < -1;
  return *terminated ? 0 : -1;
}

const environment acrobot = {
    .physics = SIZE,
    .observation = 6,
    .initial_noise = SIZE,
    .transition_noise = 0,
    .initial = initial,
    .observe = observe,
    .step = step,
};
