// SAC in C: what update() of sac.py says, seed by seed.
//
// S seeds, M transitions per gradient step, O observation size, D components of an action.
#include <math.h>

#include "actor_critic.h"
#include "critics.h"
#include "environment.h"
#include "functions.h"
#include "memory.h"
#include "mlp.h"
#include "optim.h"
#include "parallel.h"
#include "policy.h"
#include "statistics.h"

// ---- The policy ----------------------------------------------------------------------------

// Actions tanh(u) [M, D] and their log-probabilities [M], for a network's outputs [M, 2 D], means and
// log_std, and noise [M, D]. They are written to `to`, whose rows are ld apart.
static void sample(long M, long D, const float *outputs, const float *noise, float *to, long ld,
                   float *logprobs) {
  const float log_2 = 0.693147181f, half_log_2_pi = 0.918938533f;
  for (long i = 0; i < M; i++) {
    float total = 0;
    for (long d = 0; d < D; d++) {
      const float n = noise[i * D + d];
      const float log_std = clamp(outputs[i * 2 * D + D + d], LOG_STD_MIN, LOG_STD_MAX);
      const float u = outputs[i * 2 * D + d] + exp_of_one(log_std) * n, size = fabsf(u);
      // log(1 - tanh(u)^2), which is even, without the difference.
      const float of_tanh = 2 * (log_2 - size - log_of_one(1 + exp_of_one(-2 * size)));
      total += -0.5f * n * n - log_std - half_log_2_pi - of_tanh;
      to[i * ld + d] = action_tanh(u);
    }
    logprobs[i] = total;
  }
}

// The gradient of alpha log pi - Q by a network's outputs [M, 2 D], divided by M: of_actions is that
// of Q by the actions; both have rows ld apart.
static void of_outputs(long M, long D, const float *outputs, const float *noise, float alpha,
                       const float *actions, const float *of_actions, long ld, float *gradient) {
  for (long i = 0; i < M; i++)
    for (long d = 0; d < D; d++) {
      const float a = actions[i * ld + d], given = outputs[i * 2 * D + D + d];
      const float log_std = clamp(given, LOG_STD_MIN, LOG_STD_MAX);
      const float of_u = alpha * 2 * a - of_actions[i * ld + d] * (1 - a * a);
      const float of_log_std = of_u * exp_of_one(log_std) * noise[i * D + d] - alpha;
      gradient[i * 2 * D + d] = of_u / (float)M;
      // Beyond its bounds it does not change; NaN stays.
      const int held = given < LOG_STD_MIN || given > LOG_STD_MAX;
      gradient[i * 2 * D + D + d] = held ? 0 : of_log_std / (float)M;
    }
}

// ---- Gradient steps ------------------------------------------------------------------------

enum { CRITIC_LOSS, ACTOR_LOSS, Q_VALUES, ENTROPY, ALPHA };

struct sac_update {
  int S, G, M, D, P, Q, threads;  // P, Q: floats of an actor and of two critics
  int learned;                 // alpha
  const networks *actor, *critics, *target;
  const optimizer *of_actor, *of_critics, *of_temperature;
  const memory *memory;
  const float *draws;          // [S, G, M], uniforms
  const float *noise;          // [S, G, 2, M, D], standard normal
  const float *gamma, *tau;    // [S]
  const float *alpha;          // [S], unless it is learned
  const float *target_entropy;  // [S]
  float *metrics;              // [5, S], of the last minibatch
};

static void update_seed(const void *given, int s, float *scratch) {
  const struct sac_update *x = given;
  const networks *actor = x->actor, *critics = x->critics, *target = x->target;
  const long M = x->M, O = x->memory->O, D = x->D, I = O + D, S = x->S;
  float *obs = take_floats(&scratch, M * O), *next_obs = take_floats(&scratch, M * O);
  float *taken = take_floats(&scratch, M * I), *next = take_floats(&scratch, M * I);
  float *chosen = take_floats(&scratch, M * I), *y = take_floats(&scratch, M);
  float *outputs = take_floats(&scratch, M * 2 * D), *of_head = take_floats(&scratch, M * 2 * D);
  float *logprobs = take_floats(&scratch, M), *hidden[2], *q[2], *of_q[2], *of_inputs[2];
  for (int k = 0; k < 2; k++) {
    hidden[k] = take_floats(&scratch, M * width_of_hidden(critics));
    q[k] = take_floats(&scratch, M);
    of_q[k] = take_floats(&scratch, M);
    of_inputs[k] = take_floats(&scratch, M * I);
  }
  float *of_actor_hidden = take_floats(&scratch, M * width_of_hidden(actor));
  float *of_critics = take_floats(&scratch, x->Q), *of_actor = take_floats(&scratch, x->P);
  float *to[2 * (actor->layers > critics->layers ? actor->layers : critics->layers)];
  float *metrics = x->metrics + s;
  memset(of_critics, 0, sizeof(float) * x->Q);
  memset(of_actor, 0, sizeof(float) * x->P);
  for (int g = 0; g < x->G; g++) {
    const float *uniforms = x->draws + ((long)s * x->G + g) * M;
    const float *noise = x->noise + ((long)s * x->G + g) * 2 * M * D;
    float *log_alpha = x->of_temperature->parameters + s * x->of_temperature->P;
    const float alpha = x->learned ? exp_of_one(*log_alpha) : x->alpha[s];
    for (long i = 0; i < M; i++) {
      const float *row = drawn_from(x->memory, s, uniforms[i]);
      memcpy(obs + i * O, row, sizeof(float) * O);
      memcpy(next_obs + i * O, row + O, sizeof(float) * O);
      memcpy(taken + i * I, row, sizeof(float) * O);
      memcpy(taken + i * I + O, row + 2 * O, sizeof(float) * D);
      memcpy(chosen + i * I, row, sizeof(float) * O);
      memcpy(next + i * I, row + O, sizeof(float) * O);
      y[i] = row[2 * O + D];
      of_q[0][i] = row[2 * O + D + 1];  // until it is known: whether the transition ends an episode
    }
    // Targets.
    prepare_forward(actor, s, 0, scratch);
    network_forward(actor, s, 0, (int)M, next_obs, 0, scratch, outputs);
    sample(M, D, outputs, noise + M * D, next + O, I, logprobs);
    for (int k = 0; k < 2; k++) {
      prepare_forward(target, s, k, scratch);
      network_forward(target, s, k, (int)M, next, 0, scratch, q[k]);
    }
    for (long i = 0; i < M; i++) {
      const float soft = lesser(q[0][i], q[1][i]) - alpha * logprobs[i];
      y[i] += x->gamma[s] * soft * (of_q[0][i] == 0);  // NaN stays
    }
    // The critics.
    float loss = 0, values = 0;
    for (int k = 0; k < 2; k++) {
      prepare_forward(critics, s, k, scratch);
      network_forward(critics, s, k, (int)M, taken, hidden[k], scratch, q[k]);
      loss += 0.5f * squared_error(M, q[k], y, 0.5f, of_q[k]);
      values += 0.5f * (float)mean_of(M, q[k]);
      gradients_in(critics, k, of_critics, to);
      network_backward(critics, s, k, (int)M, taken, hidden[k], of_q[k], to, scratch);
    }
    optimizer_step(x->of_critics, s, of_critics);
    metrics[CRITIC_LOSS * S] = loss;
    metrics[Q_VALUES * S] = values;
    // The actor, by the critics after their step.
    prepare_forward(actor, s, 0, scratch);
    network_forward(actor, s, 0, (int)M, obs, of_actor_hidden, scratch, outputs);
    sample(M, D, outputs, noise, chosen + O, I, logprobs);
    for (int k = 0; k < 2; k++) {
      prepare_forward(critics, s, k, scratch);
      network_forward(critics, s, k, (int)M, chosen, hidden[k], scratch, q[k]);
    }
    double total = 0;
    for (long i = 0; i < M; i++) {
      total += alpha * logprobs[i] - lesser(q[0][i], q[1][i]);
      for (int k = 0; k < 2; k++) of_q[k][i] = share_of(q[k][i], q[!k][i]);
    }
    for (int k = 0; k < 2; k++)
      network_input_gradient(critics, s, k, (int)M, hidden[k], of_q[k], of_inputs[k], scratch);
    for (long i = 0; i < M * I; i++) of_inputs[0][i] += of_inputs[1][i];
    of_outputs(M, D, outputs, noise, alpha, chosen + O, of_inputs[0] + O, I, of_head);
    gradients_in(actor, 0, of_actor, to);
    network_backward(actor, s, 0, (int)M, obs, of_actor_hidden, of_head, to, scratch);
    optimizer_step(x->of_actor, s, of_actor);
    const float entropy = (float)-mean_of(M, logprobs);
    metrics[ACTOR_LOSS * S] = (float)(total / (double)M);
    metrics[ENTROPY * S] = entropy;
    metrics[ALPHA * S] = alpha;
    // alpha, and the target critics.
    if (x->learned) {
      float gradient[LANES] = {entropy - x->target_entropy[s]};
      optimizer_step(x->of_temperature, s, gradient);
    }
    follow(target, critics, s, x->tau[s]);
  }
}

int sac_update(const struct sac_update *x) {
  const networks *actor = x->actor, *critics = x->critics;
  const long M = x->M, D = x->D, O = x->memory->O, I = O + D;
  if (!stored_in(x->memory)) return 2;
  long most = forward_scratch(actor);
  const long others[] = {forward_scratch(critics), backward_scratch(actor),
                         backward_scratch(critics), input_gradient_scratch(critics)};
  for (int i = 0; i < 4; i++) most = others[i] > most ? others[i] : most;
  const long size = 2 * floats_of(M * O) + 5 * floats_of(M * I) + 6 * floats_of(M) +
                    2 * floats_of(M * 2 * D) + floats_of(M * width_of_hidden(actor)) +
                    2 * floats_of(M * width_of_hidden(critics)) + floats_of(x->P) + floats_of(x->Q);
  return for_each(x->S, x->threads, size + most, update_seed, x);
}
