// MountainCar-v0 and MountainCarContinuous-v0: one environment of mountain_car.py.
#include <math.h>

#include "environment.h"
#include "functions.h"

#define GRAVITY 0.0025f  // per step, where the hill is steepest; the track is sin(3 x) high
#define MAX_SPEED 0.07f
#define WALL -1.2f
#define END 0.6f  // of the track, behind the flag

enum { POSITION, VELOCITY, SIZE };

// ---- What both variants share --------------------------------------------------------------

static void initial(const float *noise, float *physics) {
  physics[POSITION] = -0.6f + noise[0] * 0.2f;
  physics[VELOCITY] = 0;
}

static void observe(const float *physics, float *observation) {
  for (int i = 0; i < SIZE; i++) observation[i] = physics[i];
}

// A step under a push in [-1, 1]. force: what a full push adds to the velocity. Says whether the
// car is at the flag, whose position is `goal`, and not rolling back.
static int drive(float *physics, float push, float force, float goal) {
  float position = physics[POSITION], velocity = physics[VELOCITY];
  velocity = velocity + force * push - GRAVITY * cos_of(3 * position);
  velocity = clamp(velocity, -MAX_SPEED, MAX_SPEED);
  position = clamp(position + velocity, WALL, END);
  // Only the wall on the left stops the car. Gymnasium does not stop it at the other end.
  if (position <= WALL) velocity = 0;
  physics[POSITION] = position;
  physics[VELOCITY] = velocity;
  return position >= goal && velocity >= 0;
}

// ---- Three pushes --------------------------------------------------------------------------

static float step(float *physics, action chosen, const float *noise, int *terminated) {
  (void)noise;
  *terminated = drive(physics, (float)(chosen.index - 1), 0.001f, 0.5f);
  return -1;
}

const environment mountain_car = {
    .physics = SIZE,
    .observation = SIZE,
    .initial_noise = 1,
    .transition_noise = 0,
    .initial = initial,
    .observe = observe,
    .step = step,
};

// ---- Any push ------------------------------------------------------------------------------

static float step_continuous(float *physics, action chosen, const float *noise, int *terminated) {
  (void)noise;
  const float push = chosen.components[0];  // clipped to [-1, 1] already
  *terminated = drive(physics, push, 0.0015f, 0.45f);
  return (*terminated ? 100.0f : 0.0f) - 0.1f * push * push;
}

const environment mountain_car_continuous = {
    .physics = SIZE,
    .observation = SIZE,
    .initial_noise = 1,
    .transition_noise = 0,
    .initial = initial,
    .observe = observe,
    .step = step_continuous,
};
