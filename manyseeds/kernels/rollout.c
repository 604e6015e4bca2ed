// Rollouts: T steps of N environments per seed, with the policy of that seed, in one call.
#include <math.h>
#include <stdlib.h>

#include "environment.h"
#include "mlp.h"

typedef struct {
  int steps, envs;      // T, N
  int time_limit;       // steps of an episode
  int dimensions;       // of a continuous action; 0: actions are discrete
  int noise_is_action;  // or negative: the greedy one; otherwise it is added to what is largest
  const float *low, *high;          // [D], the bounds of actions
  const float *log_std;             // [S, D]; null: discrete
  const float *mean, *scale;        // [S, O], of normalised observations; null: not
  const float *action_noise;        // [S, T, N, 1, A or D]
  const float *env_noise;           // [S, T, N, transition_noise + initial_noise]
  float *physics;                   // [S, N, P], before and after
  float *last_observations;         // [S, N, O], after
  int32_t *elapsed;                 // [S, N], likewise
  float *observations;              // [S, T, N, O]
  void *actions;                    // [S, T, N] int64, or [S, T, N, D] floats, as sampled
  float *rewards;                   // [S, T, N], like the next
  unsigned char *terminated, *truncated;
  float *next_observations;         // [S, T, N, O], the true successors
} rollout;

static const float LIMIT = 10;  // of normalised observations

// What the networks see: x [N, O], normalised and cut.
static void normalize(int N, int O, const float *mean, const float *scale, const float *x,
                      float *to) {
  for (int n = 0; n < N; n++)
    for (int o = 0; o < O; o++) {
      float value = (x[n * O + o] - mean[o]) * scale[o];
      to[n * O + o] = value > LIMIT ? LIMIT : value < -LIMIT ? -LIMIT : value;
    }
}

static long largest(int A, const float *logits, const float *noise) {
  long best = 0;
  float most = -INFINITY;
  for (int a = 0; a < A; a++) {
    float value = logits[a] + (noise ? noise[a] : 0);
    if (value > most) {
      most = value;
      best = a;
    }
  }
  return best;
}

typedef struct {
  const rollout *m;
  const environment *env;
  const networks *policy;
} call;

static void rollout_of_seed(const void *given, int s, float *scratch) {
  const call *c = given;
  const rollout *m = c->m;
  const environment *env = c->env;
  const networks *policy = c->policy;
  const int N = m->envs, O = env->observation, P = env->physics, A = policy->columns[0];
  const int columns = m->noise_is_action ? 1 : A;  // of noise
  const int D = m->dimensions, noise = env->transition_noise + env->initial_noise;
  float *between = scratch, *features = between + forward_scratch(policy);
  float *outputs = features + N * O;
  float *physics = m->physics + (long)s * N * P;
  int32_t *elapsed = m->elapsed + (long)s * N;
  prepare_forward(policy, s, 0, between);
  for (int t = 0; t < m->steps; t++) {
    const long first = ((long)s * m->steps + t) * N;  // row of the first environment
    float *observations = m->observations + first * O;
    for (int n = 0; n < N; n++) env->observe(physics + n * P, observations + n * O);
    const float *seen = observations;
    if (m->mean) {
      normalize(N, O, m->mean + s * O, m->scale + s * O, observations, features);
      seen = features;
    }
    network_forward(policy, s, 0, N, seen, 0, between, outputs);
    for (int n = 0; n < N; n++) {
      const long row = first + n;
      const float *output = outputs + n * A;
      const float *u = m->action_noise + row * columns;
      float inside[D + 1];  // the action within its bounds
      action chosen;
      if (D) {
        float *sampled = (float *)m->actions + row * D;
        for (int d = 0; d < D; d++) {
          float x = output[d] + expf(m->log_std[s * D + d]) * u[d];
          sampled[d] = x;
          inside[d] = x > m->high[d] ? m->high[d] : x < m->low[d] ? m->low[d] : x;
        }
        chosen.components = inside;
      } else {
        chosen.index = m->noise_is_action && *u >= 0 ? (long)*u
                       : largest(A, output, m->noise_is_action ? 0 : u);
        ((int64_t *)m->actions)[row] = chosen.index;
      }
      step_and_reset(env, m->time_limit, chosen, m->env_noise + row * noise, physics + n * P,
                     elapsed + n, m->next_observations + row * O, m->rewards + row,
                     m->terminated + row, m->truncated + row);
    }
  }
  for (int n = 0; n < N; n++)
    env->observe(physics + n * P, m->last_observations + ((long)s * N + n) * O);
}

// policy: one network per seed. Returns 0, or 1 without memory.
int rollout_with(const rollout *m, const environment *env, const networks *policy) {
  const long size = m->envs * (long)(env->observation + policy->columns[0]);
  const call given = {m, env, policy};
  return for_each(policy->seeds, policy->threads, size + forward_scratch(policy), rollout_of_seed,
                  &given);
}

// One step of `count` environments with discrete actions, whoever has chosen them. noise: [count,
// transition_noise + initial_noise]. physics and elapsed: before and after. The rest: [count, ...].
// Returns 0, or 1 for an action that is not in 0 to num_actions - 1.
int step_all(const environment *env, long count, int num_actions, int time_limit,
             const int64_t *actions, const float *noise, float *physics, int32_t *elapsed,
             float *observations, float *rewards, unsigned char *terminated,
             unsigned char *truncated, float *next_observations) {
  const int columns = env->transition_noise + env->initial_noise, O = env->observation;
  for (long i = 0; i < count; i++) {
    if (actions[i] < 0 || actions[i] >= num_actions) return 1;
    float *state = physics + i * env->physics;
    step_and_reset(env, time_limit, (action){.index = actions[i]}, noise + i * columns, state,
                   elapsed + i, next_observations + i * O, rewards + i, terminated + i,
                   truncated + i);
    env->observe(state, observations + i * O);
  }
  return 0;
}
