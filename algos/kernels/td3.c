// TD3 and DDPG in C: what update() of td3.py and of ddpg.py say, seed by seed.
//
// S seeds, M transitions per gradient step, O observation size, D components of an action, K critics:
// two or one.
#include "actor_critic.h"
#include "critics.h"
#include "environment.h"
#include "functions.h"
#include "memory.h"
#include "mlp.h"
#include "optim.h"
#include "parallel.h"
#include "statistics.h"

enum { CRITIC_LOSS, Q_VALUES, POLICY_Q_VALUES };

struct td3_update {
  int S, G, M, D, P, Q, threads;  // P, Q: floats of an actor and of the critics
  int before, delay;              // gradient steps so far; one in so many moves the policy
  const networks *actor, *target_actor, *critics, *target_critics;
  const optimizer *of_actor, *of_critics;
  const memory *memory;
  const float *draws;       // [S, G, M], uniforms
  const float *noise;       // [S, G, M, D], standard normal, of the target's actions; null: none
  const float *std, *clip;  // [S], of that noise
  const float *gamma, *tau;  // [S]
  float *metrics;           // [3, S], of the last minibatch; NaN where the policy does not move
};

// A policy's actions for obs [M, O], tanh of a network's outputs: written to `to`, whose rows are ld
// apart.
static void act(const networks *actor, int s, long M, long D, const float *obs, float *hidden,
                float *outputs, float *to, long ld, float *scratch) {
  prepare_forward(actor, s, 0, scratch);
  network_forward(actor, s, 0, (int)M, obs, hidden, scratch, outputs);
  for (long i = 0; i < M; i++)
    for (long d = 0; d < D; d++) to[i * ld + d] = action_tanh(outputs[i * D + d]);
}

static void update_seed(const void *given, int s, float *scratch) {
  const struct td3_update *x = given;
  const networks *actor = x->actor, *critics = x->critics;
  const int K = critics->networks;
  const long M = x->M, O = x->memory->O, D = x->D, I = O + D, S = x->S;
  float *obs = take_floats(&scratch, M * O), *next_obs = take_floats(&scratch, M * O);
  float *taken = take_floats(&scratch, M * I), *next = take_floats(&scratch, M * I);
  float *chosen = take_floats(&scratch, M * I), *of_inputs = take_floats(&scratch, M * I);
  float *y = take_floats(&scratch, M), *ended = take_floats(&scratch, M);
  float *q = take_floats(&scratch, M), *least = take_floats(&scratch, M);
  float *of_q = take_floats(&scratch, M), *outputs = take_floats(&scratch, M * D);
  float *hidden = take_floats(&scratch, M * width_of_hidden(critics));
  float *of_actor_hidden = take_floats(&scratch, M * width_of_hidden(actor));
  float *of_critics = take_floats(&scratch, x->Q), *of_actor = take_floats(&scratch, x->P);
  float *to[2 * (actor->layers > critics->layers ? actor->layers : critics->layers)];
  float *metrics = x->metrics + s;
  memset(of_critics, 0, sizeof(float) * x->Q);
  memset(of_actor, 0, sizeof(float) * x->P);
  for (int g = 0; g < x->G; g++) {
    const long first = ((long)s * x->G + g) * M;
    for (long i = 0; i < M; i++) {
      const float *row = drawn_from(x->memory, s, x->draws[first + i]);
      memcpy(obs + i * O, row, sizeof(float) * O);
      memcpy(next_obs + i * O, row + O, sizeof(float) * O);
      memcpy(taken + i * I, row, sizeof(float) * O);
      memcpy(taken + i * I + O, row + 2 * O, sizeof(float) * D);
      memcpy(chosen + i * I, row, sizeof(float) * O);
      memcpy(next + i * I, row + O, sizeof(float) * O);
      y[i] = row[2 * O + D];
      ended[i] = row[2 * O + D + 1];
    }
    // Targets.
    act(x->target_actor, s, M, D, next_obs, 0, outputs, next + O, I, scratch);
    if (x->noise)
      for (long i = 0; i < M; i++)
        for (long d = 0; d < D; d++) {
          const float n = x->std[s] * x->noise[(first + i) * D + d];
          float *action = next + i * I + O + d;
          *action = clamp(*action + clamp(n, -x->clip[s], x->clip[s]), -1, 1);
        }
    for (int k = 0; k < K; k++) {
      prepare_forward(x->target_critics, s, k, scratch);
      network_forward(x->target_critics, s, k, (int)M, next, 0, scratch, q);
      for (long i = 0; i < M; i++) least[i] = k ? lesser(least[i], q[i]) : q[i];
    }
    for (long i = 0; i < M; i++) y[i] += x->gamma[s] * least[i] * (ended[i] == 0);  // NaN stays
    // The critics.
    float loss = 0, values = 0;
    for (int k = 0; k < K; k++) {
      prepare_forward(critics, s, k, scratch);
      network_forward(critics, s, k, (int)M, taken, hidden, scratch, q);
      loss += squared_error(M, q, y, 1, of_q);
      values += (float)mean_of(M, q) / (float)K;
      gradients_in(critics, k, of_critics, to);
      network_backward(critics, s, k, (int)M, taken, hidden, of_q, to, scratch);
    }
    optimizer_step(x->of_critics, s, of_critics);
    metrics[CRITIC_LOSS * S] = loss;
    metrics[Q_VALUES * S] = values;
    metrics[POLICY_Q_VALUES * S] = NAN;
    if ((x->before + g + 1) % x->delay) continue;
    // The actor, by the first critic after its step.
    act(actor, s, M, D, obs, of_actor_hidden, outputs, chosen + O, I, scratch);
    prepare_forward(critics, s, 0, scratch);
    network_forward(critics, s, 0, (int)M, chosen, hidden, scratch, q);
    metrics[POLICY_Q_VALUES * S] = (float)mean_of(M, q);
    for (long i = 0; i < M; i++) of_q[i] = -1 / (float)M;
    network_input_gradient(critics, s, 0, (int)M, hidden, of_q, of_inputs, scratch);
    for (long i = 0; i < M; i++)
      for (long d = 0; d < D; d++) {
        const float a = chosen[i * I + O + d];
        outputs[i * D + d] = of_inputs[i * I + O + d] * (1 - a * a);
      }
    gradients_in(actor, 0, of_actor, to);
    network_backward(actor, s, 0, (int)M, obs, of_actor_hidden, outputs, to, scratch);
    optimizer_step(x->of_actor, s, of_actor);
    follow(x->target_critics, critics, s, x->tau[s]);
    follow(x->target_actor, actor, s, x->tau[s]);
  }
}

int td3_update(const struct td3_update *x) {
  const networks *actor = x->actor, *critics = x->critics;
  const long M = x->M, D = x->D, O = x->memory->O, I = O + D;
  if (!stored_in(x->memory)) return 2;
  long most = forward_scratch(actor);
  const long others[] = {forward_scratch(critics), backward_scratch(actor),
                         backward_scratch(critics), input_gradient_scratch(critics)};
  for (int i = 0; i < 4; i++) most = others[i] > most ? others[i] : most;
  const long size = 2 * floats_of(M * O) + 4 * floats_of(M * I) + 5 * floats_of(M) +
                    floats_of(M * D) + floats_of(M * width_of_hidden(actor)) +
                    floats_of(M * width_of_hidden(critics)) + floats_of(x->P) + floats_of(x->Q);
  return for_each(x->S, x->threads, size + most, update_seed, x);
}
