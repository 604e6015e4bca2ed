// Steps of environments with policies: the rollouts that a training learns from, and the episodes of
// an evaluation. S seeds, N environments of each.
//
// O floats of an observation, P of an environment's state, D components of a continuous action.
#include <math.h>

#include "distributions.h"
#include "environment.h"
#include "functions.h"
#include "policy.h"
#include "values.h"

// What acts, and in what.
typedef struct {
  int N, O, P, D;         // D 0: actions are discrete
  int columns;            // of an action's noise
  int noise_is_action;    // or negative: the greedy one; otherwise it is added to what is largest
                          // (of actions that are discrete, or squashed)
  const environment *environment;
  const policy *policy;
  const float *low, *high;  // [D], the bounds of actions; null: discrete
  // [D], what -1 and 1 stand for where an action is tanh of a mean, or of a Gaussian, whose log_std are
  // outputs behind the means; null: it is neither
  const float *squashed_low;   // [D]; null
  const float *squashed_high;  // [D]; null
  int gaussian;                // or only means
  int explores;                // noise is (behind that of the Gaussian) for adding to squashed actions
  const returns *returns;      // what outputs stand for that are no logits or values; null: they are
} players;

// Numbers that actions are chosen by: a network's outputs, or action values.
static long choices_of(const players *p) {
  return p->returns ? p->returns->A : p->policy->networks->columns[0];
}

static long largest(int A, const float *logits, const float *noise) {
  long best = 0;
  float most = -INFINITY;
  for (int a = 0; a < A; a++) {
    const float value = logits[a] + (noise ? noise[a] : 0);
    if (value > most) {
      most = value;
      best = a;
    }
  }
  return best;
}

// Component d of an action from -1 to 1. Noise that is the action is uniform, from 0 to 1.
static float squashed_action(const players *p, int d, const float *outputs, const float *noise) {
  const float mean = outputs[d];
  if (!noise) return action_tanh(mean);
  if (p->noise_is_action) return 2 * noise[d] - 1;
  float squashed = action_tanh(mean);
  if (p->gaussian) {
    const float log_std = clamp(outputs[p->D + d], LOG_STD_MIN, LOG_STD_MAX);
    squashed = action_tanh(mean + exp_of_one(log_std) * noise[d]);
  }
  if (p->explores) squashed = clamp(squashed + noise[p->gaussian * p->D + d], -1, 1);
  return squashed;
}

// The action for a network's outputs, greedy without noise. A continuous one is written to sampled
// and, within its bounds, to inside, both [D].
static action choose_action(const players *p, int s, const float *outputs, const float *noise,
                            float *sampled, float *inside) {
  if (!p->D) {
    if (p->noise_is_action && noise && *noise >= 0) return (action){.index = (long)*noise};
    const float *added = p->noise_is_action ? 0 : noise;
    return (action){.index = largest((int)choices_of(p), outputs, added)};
  }
  for (int d = 0; d < p->D; d++) {
    if (p->squashed_low) {
      const float share = (squashed_action(p, d, outputs, noise) + 1) / 2;
      sampled[d] = p->squashed_low[d] * (1 - share) + p->squashed_high[d] * share;
    } else {
      const float *log_std = p->policy->log_std + s * p->policy->stride;
      sampled[d] = outputs[d] + (noise ? exp_of_one(log_std[d]) * noise[d] : 0);
    }
    inside[d] = clamp(sampled[d], p->low[d], p->high[d]);
  }
  return (action){.components = inside};
}

// Puts what `choices` needs of seed s into scratch.
static void prepare_choices(const players *p, int s, float *scratch) {
  const networks *m = p->policy->networks;
  for (int k = 0; k < (p->returns ? m->networks : 1); k++)
    prepare_forward(m, s, k, scratch + k * floats_of(forward_scratch(m)));
}

// What the actions of B samples are chosen by [B, choices_of]. scratch: prepared for this seed.
static void choices(const players *p, int s, long B, const float *features, float *scratch,
                    float *found) {
  const networks *m = p->policy->networks;
  const returns *r = p->returns;
  if (!r) {
    network_forward(m, s, 0, (int)B, features, 0, scratch, found);
    return;
  }
  const long A = r->A, Z = r->Z, own = floats_of(forward_scratch(m));
  float *memory = scratch + m->networks * own, *outputs = take_floats(&memory, B * A * Z);
  float *values = take_floats(&memory, B * Z), *probabilities = take_floats(&memory, Z);
  network_forward(m, s, 0, (int)B, features, 0, scratch, outputs);
  if (m->networks == 2) {
    network_forward(m, s, 1, (int)B, features, 0, scratch + own, values);
    add_values(r, B, values, outputs);
  }
  for (long i = 0; i < B * A; i++)
    found[i] = mean_of_return(r, s, outputs + i * Z, probabilities);
}

static long players_scratch(const players *p) {
  const networks *m = p->policy->networks;
  const returns *r = p->returns;
  const long N = p->N, size = 2 * floats_of(N * p->O) + floats_of(N * choices_of(p));
  if (!r) return size + forward_scratch(m);
  return size + m->networks * floats_of(forward_scratch(m)) + floats_of(N * r->A * r->Z) +
         floats_of(N * r->Z) + floats_of(r->Z);
}

// ---- Rollouts ------------------------------------------------------------------------------

struct rollout {
  int S, T, N, O, P, columns, noise, time_limit, threads;  // noise: of an environment's step
  const players *players;
  const float *action_noise;  // [S, T, N, columns]
  const float *env_noise;     // [S, T, N, noise]
  float *physics;             // [S, N, P], before and after
  int32_t *elapsed;           // [S, N], likewise
  float *last;                // [S, N, O], observations after
  float *obs;                 // [S, T, N, O]
  void *actions;              // [S, T, N] int64, or with D floats each, as sampled
  float *rewards;             // [S, T, N]
  unsigned char *terminated, *truncated;  // [S, T, N]
  float *next_obs;            // [S, T, N, O], the true successors
};

static void rollout_of_seed(const void *given, int s, float *scratch) {
  const struct rollout *x = given;
  const players *p = x->players;
  const environment *env = p->environment;
  const long N = x->N, O = x->O, P = x->P, D = p->D, A = choices_of(p);
  float *features = take_floats(&scratch, N * O), *outputs = take_floats(&scratch, N * A);
  float *physics = x->physics + s * N * P, inside[D + 1], ignored[D + 1];
  int32_t *elapsed = x->elapsed + s * N;
  prepare_choices(p, s, scratch);
  for (int t = 0; t < x->T; t++) {
    const long first = ((long)s * x->T + t) * N;  // row of the first environment
    for (int n = 0; n < N; n++) env->observe(physics + n * P, x->obs + (first + n) * O);
    features_of(p->policy, s, N, x->obs + first * O, features);
    choices(p, s, N, features, scratch, outputs);
    for (long n = 0, i = first; n < N; n++, i++) {
      float *state = physics + n * P, *sampled = D ? (float *)x->actions + i * D : ignored;
      const action chosen =
          choose_action(p, s, outputs + n * A, x->action_noise + i * x->columns, sampled, inside);
      if (!D) ((int64_t *)x->actions)[i] = chosen.index;
      const float *noise = x->env_noise + i * x->noise;
      step_and_reset(env, x->time_limit, chosen, noise, state, elapsed + n, x->next_obs + i * O,
                     x->rewards + i, x->terminated + i, x->truncated + i);
    }
  }
  for (int n = 0; n < N; n++) env->observe(physics + n * P, x->last + (s * N + n) * O);
}

int rollout(const struct rollout *x) {
  return for_each(x->S, x->threads, players_scratch(x->players), rollout_of_seed, x);
}

// One step with discrete actions, whoever has chosen them.
struct one_step {
  int S, N, O, P, A, noise, time_limit, threads;
  const environment *environment;
  const int64_t *actions;  // [S, N]
  const float *env_noise;  // [S, N, noise]
  float *physics;          // [S, N, P], before and after
  int32_t *elapsed;        // [S, N], likewise
  float *obs;              // [S, N, O]
  float *rewards;          // [S, N]
  unsigned char *terminated, *truncated;  // [S, N]
  float *final_obs;        // [S, N, O]
};

static void step_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct one_step *x = given;
  for (long n = 0, i = s * (long)x->N; n < x->N; n++, i++) {
    float *state = x->physics + i * x->P;
    step_and_reset(x->environment, x->time_limit, (action){.index = x->actions[i]},
                   x->env_noise + i * x->noise, state, x->elapsed + i, x->final_obs + i * x->O,
                   x->rewards + i, x->terminated + i, x->truncated + i);
    x->environment->observe(state, x->obs + i * x->O);
  }
}

int one_step(const struct one_step *x) {
  if (!are_actions((long)x->S * x->N, x->A, x->actions)) return 2;
  return for_each(x->S, x->threads, 0, step_of_seed, x);
}

// ---- Episodes ------------------------------------------------------------------------------

// T steps of one episode in each environment; one that has ended is left alone.
struct episodes {
  int S, T, N, P, columns, noise, time_limit, threads;
  const players *players;
  const float *action_noise;  // [S, T, N, columns]; null: greedy
  const float *env_noise;     // [T, N, noise], the same for all seeds; null: none is needed
  float *physics;             // [S, N, P], before and after
  int32_t *elapsed;           // [S, N], likewise
  unsigned char *alive;       // [S, N], likewise
  double *returns, *lengths;  // [S, N], what is added up
};

static void episodes_of_seed(const void *given, int s, float *scratch) {
  const struct episodes *x = given;
  const players *p = x->players;
  const environment *env = p->environment;
  const long N = x->N, O = p->O, P = x->P, D = p->D, A = choices_of(p);
  float *obs = take_floats(&scratch, N * O), *features = take_floats(&scratch, N * O);
  float *outputs = take_floats(&scratch, N * A), inside[D + 1], sampled[D + 1];
  prepare_choices(p, s, scratch);
  for (int t = 0; t < x->T; t++) {
    int going = 0;
    for (int n = 0; n < N; n++)
      if (x->alive[s * N + n]) env->observe(x->physics + (s * N + n) * P, obs + going++ * O);
    if (!going) return;
    features_of(p->policy, s, going, obs, features);
    choices(p, s, going, features, scratch, outputs);
    going = 0;
    for (long n = 0, i = s * N; n < N; n++, i++) {
      if (!x->alive[i]) continue;
      const long row = ((long)s * x->T + t) * N + n;
      const float *noise = x->action_noise ? x->action_noise + row * x->columns : 0;
      const action chosen = choose_action(p, s, outputs + going++ * A, noise, sampled, inside);
      int terminated = 0;
      const float *transition = x->env_noise ? x->env_noise + (t * N + n) * x->noise : 0;
      x->returns[i] += env->step(x->physics + i * P, chosen, transition, &terminated);
      x->lengths[i] += 1;
      if (++x->elapsed[i] >= x->time_limit || terminated) x->alive[i] = 0;
    }
  }
}

int episodes(const struct episodes *x) {
  return for_each(x->S, x->threads, players_scratch(x->players), episodes_of_seed, x);
}

// Episodes from their starts to their ends, step by step; nothing is written after an end.
struct play {
  int S, L, N, O, P, columns, noise, time_limit, threads;
  const players *players;
  const float *action_noise;  // [S, L, N, columns]
  const float *env_noise;     // [S, L, N, noise]
  float *physics;             // [S, N, P], before and after
  float *obs;                 // [S, L, N, O]
  void *actions;              // int64 [S, L, N], or with D floats each, as sampled
  float *rewards;             // [S, L, N]
  unsigned char *alive;       // [S, L, N], which steps were taken
};

static void play_seed(const void *given, int s, float *scratch) {
  const struct play *x = given;
  const players *p = x->players;
  const environment *env = p->environment;
  const long N = x->N, O = x->O, D = p->D, A = choices_of(p);
  float *seen = take_floats(&scratch, N * O), *features = take_floats(&scratch, N * O);
  float *outputs = take_floats(&scratch, N * A), inside[D + 1], ignored[D + 1];
  float *physics = x->physics + s * N * x->P;
  int64_t *going = (int64_t *)take_floats(&scratch, 2 * N);  // episodes that have not ended
  long count = N;
  for (long n = 0; n < N; n++) going[n] = n;
  prepare_choices(p, s, scratch);
  for (long t = 0; t < x->L && t < x->time_limit && count; t++) {
    const long first = ((long)s * x->L + t) * N;
    for (long k = 0; k < count; k++) {
      const long n = going[k];
      env->observe(physics + n * x->P, seen + k * O);
      memcpy(x->obs + (first + n) * O, seen + k * O, sizeof(float) * O);
    }
    features_of(p->policy, s, count, seen, features);
    choices(p, s, count, features, scratch, outputs);
    long left = 0;
    for (long k = 0; k < count; k++) {
      const long n = going[k], i = first + n;
      float *sampled = D ? (float *)x->actions + i * D : ignored;
      const action chosen =
          choose_action(p, s, outputs + k * A, x->action_noise + i * x->columns, sampled, inside);
      if (!D) ((int64_t *)x->actions)[i] = chosen.index;
      int terminated = 0;
      x->rewards[i] =
          env->step(physics + n * x->P, chosen, x->env_noise + i * x->noise, &terminated);
      x->alive[i] = 1;
      if (!terminated) going[left++] = n;
    }
    count = left;
  }
}

int play(const struct play *x) {
  const long size = floats_of(2L * x->N) + players_scratch(x->players);
  return for_each(x->S, x->threads, size, play_seed, x);
}

// The means over N episodes of their returns and lengths.
struct means_of_played {
  int S, L, N, threads;
  const float *rewards;        // [S, L, N]
  const unsigned char *alive;  // [S, L, N]
  float *means;                // [2, S]
};

static void means_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct means_of_played *x = given;
  const long size = (long)x->L * x->N;
  double total = 0, steps = 0;
  for (long i = s * size; i < (s + 1) * size; i++) {
    total += x->rewards[i];
    steps += x->alive[i];
  }
  x->means[s] = (float)(total / x->N);
  x->means[x->S + s] = (float)(steps / x->N);
}

int means_of_played(const struct means_of_played *x) {
  return for_each(x->S, x->threads, 0, means_of_seed, x);
}
