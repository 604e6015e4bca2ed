// SAC for discrete actions in C: what update() of sac_discrete.py says, seed by seed.
//
// S seeds, M transitions per gradient step, O observation size, A actions.
#include "actor_critic.h"
#include "critics.h"
#include "distributions.h"
#include "functions.h"
#include "memory.h"
#include "mlp.h"
#include "optim.h"
#include "parallel.h"
#include "statistics.h"

enum { CRITIC_LOSS, ACTOR_LOSS, Q_VALUES, ENTROPY, ALPHA };

struct sac_discrete_update {
  int S, G, M, P, Q, threads;  // P, Q: floats of an actor and of two critics
  int learned;                 // alpha
  const networks *actor, *critics, *target;
  const optimizer *of_actor, *of_critics, *of_temperature;
  const memory *memory;
  const float *draws;          // [S, G, M], uniforms
  const float *gamma, *tau;    // [S]
  const float *alpha;          // [S], unless it is learned
  const float *target_entropy;  // [S]
  float *metrics;              // [5, S], of the last minibatch
};

static void update_seed(const void *given, int s, float *scratch) {
  const struct sac_discrete_update *x = given;
  const networks *actor = x->actor, *critics = x->critics, *target = x->target;
  const long M = x->M, O = x->memory->O, A = actor->columns[0], S = x->S;
  float *obs = take_floats(&scratch, M * O), *next_obs = take_floats(&scratch, M * O);
  float *y = take_floats(&scratch, M), *ends = take_floats(&scratch, M);
  float *values = take_floats(&scratch, M), *of_values = take_floats(&scratch, M);
  float *logits = take_floats(&scratch, M * A), *logprobs = take_floats(&scratch, M * A);
  float *probabilities = take_floats(&scratch, M * A), *of_outputs = take_floats(&scratch, M * A);
  float *q[2] = {take_floats(&scratch, M * A), take_floats(&scratch, M * A)};
  float *of_critics = take_floats(&scratch, x->Q), *of_actor = take_floats(&scratch, x->P);
  long most_hidden = width_of_hidden(actor);
  if (width_of_hidden(critics) > most_hidden) most_hidden = width_of_hidden(critics);
  float *hidden = take_floats(&scratch, M * most_hidden);
  float *to[2 * (actor->layers > critics->layers ? actor->layers : critics->layers)];
  long *taken = (long *)take_floats(&scratch, 2 * M);  // where Q(s, a) is among M A values
  float *metrics = x->metrics + s;
  memset(of_critics, 0, sizeof(float) * x->Q);
  memset(of_actor, 0, sizeof(float) * x->P);
  for (int g = 0; g < x->G; g++) {
    const float *uniforms = x->draws + ((long)s * x->G + g) * M;
    float *log_alpha = x->of_temperature->parameters + s * x->of_temperature->P;
    const float alpha = x->learned ? exp_of_one(*log_alpha) : x->alpha[s];
    for (long i = 0; i < M; i++) {
      const float *row = drawn_from(x->memory, s, uniforms[i]);
      memcpy(obs + i * O, row, sizeof(float) * O);
      memcpy(next_obs + i * O, row + O, sizeof(float) * O);
      taken[i] = i * A + (long)row[2 * O];
      y[i] = row[2 * O + 1];
      ends[i] = row[2 * O + 2];
    }
    // Targets.
    prepare_forward(actor, s, 0, scratch);
    network_forward(actor, s, 0, (int)M, next_obs, 0, scratch, logits);
    log_softmax(M, (int)A, logits, logprobs, probabilities);
    exp_of_all(M * A, logprobs, probabilities);
    for (int k = 0; k < 2; k++) {
      prepare_forward(target, s, k, scratch);
      network_forward(target, s, k, (int)M, next_obs, 0, scratch, q[k]);
    }
    for (long i = 0; i < M; i++) {
      float soft = 0;
      for (long j = i * A; j < (i + 1) * A; j++)
        soft += probabilities[j] * (lesser(q[0][j], q[1][j]) - alpha * logprobs[j]);
      y[i] += x->gamma[s] * soft * (ends[i] == 0);  // NaN stays
    }
    // The critics.
    float loss = 0, mean = 0;
    for (int k = 0; k < 2; k++) {
      prepare_forward(critics, s, k, scratch);
      network_forward(critics, s, k, (int)M, obs, hidden, scratch, q[k]);
      for (long i = 0; i < M; i++) values[i] = q[k][taken[i]];
      loss += 0.5f * squared_error(M, values, y, 0.5f, of_values);
      mean += 0.5f * (float)mean_of(M, values);
      memset(of_outputs, 0, sizeof(float) * M * A);
      for (long i = 0; i < M; i++) of_outputs[taken[i]] = of_values[i];
      gradients_in(critics, k, of_critics, to);
      network_backward(critics, s, k, (int)M, obs, hidden, of_outputs, to, scratch);
    }
    optimizer_step(x->of_critics, s, of_critics);
    metrics[CRITIC_LOSS * S] = loss;
    metrics[Q_VALUES * S] = mean;
    // The actor, by the critics after their step.
    for (int k = 0; k < 2; k++) {
      prepare_forward(critics, s, k, scratch);
      network_forward(critics, s, k, (int)M, obs, 0, scratch, q[k]);
    }
    prepare_forward(actor, s, 0, scratch);
    network_forward(actor, s, 0, (int)M, obs, hidden, scratch, logits);
    log_softmax(M, (int)A, logits, logprobs, probabilities);
    exp_of_all(M * A, logprobs, probabilities);
    double total = 0, entropy = 0;
    for (long i = 0; i < M; i++) {
      float *costs = q[0], expected = 0;
      for (long j = i * A; j < (i + 1) * A; j++) {
        costs[j] = alpha * logprobs[j] - lesser(q[0][j], q[1][j]);
        expected += probabilities[j] * costs[j];
        entropy -= probabilities[j] * logprobs[j];
      }
      total += expected;
      // d/dz_b sum_a pi_a cost_a = pi_b (cost_b - sum_a pi_a cost_a): that of log pi is 0 on average.
      for (long j = i * A; j < (i + 1) * A; j++)
        of_outputs[j] = probabilities[j] * (costs[j] - expected) / (float)M;
    }
    gradients_in(actor, 0, of_actor, to);
    network_backward(actor, s, 0, (int)M, obs, hidden, of_outputs, to, scratch);
    optimizer_step(x->of_actor, s, of_actor);
    metrics[ACTOR_LOSS * S] = (float)(total / (double)M);
    metrics[ENTROPY * S] = (float)(entropy / (double)M);
    metrics[ALPHA * S] = alpha;
    // alpha, and the target critics.
    if (x->learned) {
      float gradient[LANES] = {metrics[ENTROPY * S] - x->target_entropy[s]};
      optimizer_step(x->of_temperature, s, gradient);
    }
    follow(target, critics, s, x->tau[s]);
  }
}

int sac_discrete_update(const struct sac_discrete_update *x) {
  const networks *actor = x->actor, *critics = x->critics;
  const long M = x->M, A = actor->columns[0];
  if (!holds_actions(x->memory, (long)x->G * M, x->draws, (int)A)) return 2;
  long most = forward_scratch(actor), most_hidden = width_of_hidden(actor);
  if (width_of_hidden(critics) > most_hidden) most_hidden = width_of_hidden(critics);
  const long others[] = {forward_scratch(critics), backward_scratch(actor),
                         backward_scratch(critics)};
  for (int i = 0; i < 3; i++) most = others[i] > most ? others[i] : most;
  const long size = 2 * floats_of(M * x->memory->O) + 4 * floats_of(M) + 6 * floats_of(M * A) +
                    floats_of(M * most_hidden) + floats_of(2 * M) + floats_of(x->P) +
                    floats_of(x->Q);
  return for_each(x->S, x->threads, size + most, update_seed, x);
}
