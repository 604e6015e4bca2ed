// What the C code of an environment offers: one environment of one seed, without memory of its own.
#pragma once
#include <stdint.h>

typedef union {
  long index;               // of a discrete action
  const float *components;  // of a continuous action, clipped to its bounds
} action;

typedef struct {
  int physics;           // floats of a state
  int observation;       // floats of an observation
  int initial_noise;     // uniforms in [0, 1) that a start takes
  int transition_noise;  // uniforms that a step takes
  void (*initial)(const float *noise, float *physics);
  void (*observe)(const float *physics, float *observation);
  // Changes the physics; returns the reward, and says whether the task has ended.
  float (*step)(float *physics, action chosen, const float *noise, int *terminated);
} environment;

// A step of one environment, which begins another episode at once where one ends (NativeEnv.step of
// envs/core.py). next_observation: before that.
static inline void step_and_reset(const environment *env, int time_limit, action chosen,
                                  const float *noise, float *physics, int32_t *elapsed,
                                  float *next_observation, float *reward,
                                  unsigned char *terminated, unsigned char *truncated) {
  int ends = 0;
  *reward = env->step(physics, chosen, noise, &ends);
  env->observe(physics, next_observation);
  *terminated = (unsigned char)ends;
  *truncated = ++*elapsed >= time_limit;
  if (*terminated || *truncated) {
    env->initial(noise + env->transition_noise, physics);
    *elapsed = 0;
  }
}

// x in [low, high]; NaN stays.
static inline float clamp(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}
