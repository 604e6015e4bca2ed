// TRPO in C: what policy_step(), fit_critic() and update() of trpo.py say, seed by seed.
//
// S seeds, B samples of a rollout, M per gradient step of V, O observation size, D components of a
// continuous action, P parameters of a policy or of a value function. Python calls the functions at
// the ends of the sections, with the structs before them (manyseeds/kernels/binding.py).
#include <math.h>

#include "actor_critic.h"
#include "distributions.h"
#include "functions.h"
#include "optim.h"
#include "scan.h"
#include "statistics.h"

// ---- A step within the trust region --------------------------------------------------------

enum { POLICY_LOSS, KL, SUCCESS, FRACTION, ENTROPY };

struct trpo_policy_step {
  int S, B, O, P, threads, normalized;  // normalized: advantages
  int cg_steps, line_search_steps;
  double shrink;                        // between two steps of the line search
  const policy *policy;                 // whose parameters are theta
  float *theta;                         // [S, P]
  const float *obs;                     // [S, B, O]
  const void *actions;                  // int64 [S, B], or floats with D components each
  const float *logprobs, *advantages;   // [S, B]
  const float *damping, *target_kl;     // [S]
  float *metrics;                       // [5, S]
};

// What is known of a seed at the policy that acted, and memory to compute with.
typedef struct {
  const policy *policy;
  int s;
  long B, P;
  const float *x;         // [B, O], features
  const void *actions;
  const float *logprobs;  // [B], of the rollout
  float damping;
  float *advantages;      // [B], normalised
  evaluated old, new;     // of pi_old, and of a policy that is tried
  float *old_logps, *new_logps, *old_log_std;  // [B, A] each, of discrete actions; or [D]
  float *ratios;          // [B]
  float *scratch;
} region;

// L = E[ratio A] for log-probabilities [B]; leaves the ratios.
static float surrogate(region *w, const float *logprobs) {
  for (long i = 0; i < w->B; i++) w->ratios[i] = logprobs[i] - w->logprobs[i];
  exp_of_all(w->B, w->ratios, w->ratios);
  double total = 0;
  for (long i = 0; i < w->B; i++) total += w->ratios[i] * w->advantages[i];
  return (float)(total / (double)w->B);
}

// (H + damping I) v for a vector [P]: H = E[J^T M J], M the Hessian of KL.
static void fisher_vector_product(region *w, float *v, float *product) {
  const policy *p = w->policy;
  const networks *m = p->networks;
  const int B = (int)w->B, W = m->columns[0];
  float *parts[2 * m->layers], *of_head = w->old.of_head;
  gradients_in(m, 0, v, parts);
  network_tangent(m, w->s, 0, B, w->x, w->old.hidden, parts, of_head, w->scratch);
  if (p->continuous) gaussian_hessian(B, W, w->old.inverse, of_head);
  else categorical_hessian(B, W, w->old.probabilities, of_head);
  gradients_in(m, 0, product, parts);
  network_backward(m, w->s, 0, B, w->x, w->old.hidden, of_head, parts, w->scratch);
  if (p->continuous)
    for (int d = 0; d < W; d++) product[p->place + d] = 2 * v[p->place + d];
  for (long i = 0; i < w->P; i++) product[i] += w->damping * v[i];
}

// Solves (H + damping I) x = b; all [P]. b becomes the residual.
static void conjugate_gradient(region *w, int steps, float *b, float *direction, float *along,
                               float *x) {
  const float tolerance = 1e-10f;
  const long P = w->P;
  memset(x, 0, sizeof(float) * P);
  memcpy(direction, b, sizeof(float) * P);
  float square = dot_of(P, b, b);
  for (int step = 0; step < steps && square >= tolerance; step++) {
    fisher_vector_product(w, direction, along);
    const float length = square / dot_of(P, direction, along);
    for (long i = 0; i < P; i++) {
      x[i] += length * direction[i];
      b[i] -= length * along[i];
    }
    const float new_square = dot_of(P, b, b), ratio = new_square / square;
    for (long i = 0; i < P; i++) direction[i] = b[i] + ratio * direction[i];
    square = new_square;
  }
}

// L and the mean KL at the parameters that the policy has now.
static float evaluate(region *w, float *kl) {
  const policy *p = w->policy;
  const int W = p->networks->columns[0];
  policy_forward(p, w->s, w->B, w->x, w->actions, &w->new, w->scratch);
  if (p->continuous) {
    const float *log_std = p->log_std + w->s * p->stride;
    *kl = gaussian_kl(w->B, W, w->old.head, w->old_log_std, w->new.head, log_std);
  } else {
    log_softmax(w->B, W, w->new.head, w->new_logps, w->new.of_head);
    *kl = categorical_kl(w->B, W, w->old.probabilities, w->old_logps, w->new_logps);
  }
  return surrogate(w, w->new.logprobs);
}

static long step_size(const struct trpo_policy_step *x) {
  const policy *p = x->policy;
  const long B = x->B, W = p->networks->columns[0];
  const long tangent = tangent_scratch(p->networks), rest = policy_scratch(p);
  return floats_of(B * x->O) + 2 * floats_of(B) + 2 * evaluated_size(p, B) +
         2 * floats_of(B * W) + 5 * floats_of(x->P) + (tangent > rest ? tangent : rest);
}

static void step_of_seed(const void *given, int s, float *scratch) {
  const struct trpo_policy_step *x = given;
  const policy *p = x->policy;
  const long B = x->B, P = x->P, S = x->S, first = s * B, W = p->networks->columns[0];
  float *theta = x->theta + s * P, *metrics = x->metrics + s;
  float *features = take_floats(&scratch, B * x->O);
  region w = {.policy = p, .s = s, .B = B, .P = P, .x = features, .damping = x->damping[s]};
  w.actions = actions_at(p, x->actions, first);
  w.logprobs = x->logprobs + first;
  w.advantages = take_floats(&scratch, B);
  w.ratios = take_floats(&scratch, B);
  w.old = evaluated_in(p, B, &scratch);
  w.new = evaluated_in(p, B, &scratch);
  w.old_logps = w.old_log_std = take_floats(&scratch, B * W);
  w.new_logps = take_floats(&scratch, B * W);
  float *gradient = take_floats(&scratch, P), *natural = take_floats(&scratch, P);
  float *direction = take_floats(&scratch, P), *product = take_floats(&scratch, P);
  float *before = take_floats(&scratch, P);
  w.scratch = scratch;
  features_of(p, s, B, x->obs + first * x->O, features);
  float shift = 0, scale = 1;
  if (x->normalized && B > 1) normalizer_of(B, x->advantages + first, &shift, &scale);
  for (long i = 0; i < B; i++) w.advantages[i] = (x->advantages[first + i] - shift) * scale;

  // The surrogate and its gradient at pi_old.
  policy_forward(p, s, B, features, w.actions, &w.old, scratch);
  if (p->continuous) memcpy(w.old_log_std, p->log_std + s * p->stride, sizeof(float) * W);
  else log_softmax(B, (int)W, w.old.head, w.old_logps, w.new.of_head);
  float objective = surrogate(&w, w.old.logprobs), kl = 0, accepted = 0;
  for (long i = 0; i < B; i++) w.ratios[i] *= w.advantages[i] / (float)B;  // dL by log-probability
  memset(gradient, 0, sizeof(float) * P);  // also what nothing is written to: padding
  memset(product, 0, sizeof(float) * P);
  policy_backward(p, s, B, features, w.actions, &w.old, w.ratios, 0, gradient, scratch);

  // The natural gradient, as long as the trust region allows.
  conjugate_gradient(&w, x->cg_steps, gradient, direction, product, natural);
  fisher_vector_product(&w, natural, product);
  const float full = sqrtf(2 * x->target_kl[s] / dot_of(P, natural, product));

  // The first of ever shorter steps that keeps the constraint and improves; NaN does neither.
  memcpy(before, theta, sizeof(float) * P);
  double fraction = 1;
  for (int j = 0; j < x->line_search_steps && accepted == 0; j++, fraction *= x->shrink) {
    for (long i = 0; i < P; i++) theta[i] = before[i] + (float)fraction * (full * natural[i]);
    float new_kl;
    const float new_objective = evaluate(&w, &new_kl);
    if (!(new_kl <= x->target_kl[s] && new_objective > objective)) continue;
    accepted = (float)fraction;
    objective = new_objective;
    kl = new_kl;
  }
  if (accepted == 0) memcpy(theta, before, sizeof(float) * P);
  metrics[POLICY_LOSS * S] = -objective;
  metrics[KL * S] = kl;
  metrics[SUCCESS * S] = accepted > 0;
  metrics[FRACTION * S] = accepted;
  metrics[ENTROPY * S] = (float)mean_of(B, w.old.entropies);
}

int trpo_policy_step(const struct trpo_policy_step *x) {
  const policy *p = x->policy;
  if (!p->continuous && !are_actions((long)x->S * x->B, p->networks->columns[0], x->actions))
    return 2;
  return for_each(x->S, x->threads, step_size(x), step_of_seed, x);
}

// ---- Passes of the value function over a rollout -------------------------------------------

struct trpo_fit_critic {
  int S, B, M, O, P, epochs, threads;
  const policy *policy;        // whose features V sees, too
  const networks *critic;
  const optimizer *optimizer;  // of the critic's parameters
  const float *obs;            // [S, B, O]
  const float *returns;        // [S, B]
  const float *shuffle;        // [S, epochs, B], keys of each pass's order
  float *losses;               // [S], of the last minibatch
};

static long fit_size(const struct trpo_fit_critic *x) {
  const long B = x->B, M = x->M, forward = forward_scratch(x->critic);
  const long backward = backward_scratch(x->critic);
  return floats_of(B * x->O) + floats_of(2 * B) + floats_of(order_scratch(B)) +
         floats_of(M * x->O) + 3 * floats_of(M) + floats_of(M * width_of_hidden(x->critic)) +
         floats_of(x->P) + (forward > backward ? forward : backward);
}

static void fit_of_seed(const void *given, int s, float *scratch) {
  const struct trpo_fit_critic *x = given;
  const networks *m = x->critic;
  const long B = x->B, M = x->M, O = x->O, first = s * B;
  float *features = take_floats(&scratch, B * O);
  int64_t *order = (int64_t *)take_floats(&scratch, 2 * B);
  float *sorting = take_floats(&scratch, order_scratch(B));
  float *inputs = take_floats(&scratch, M * O), *targets = take_floats(&scratch, M);
  float *values = take_floats(&scratch, M), *of_values = take_floats(&scratch, M);
  float *hidden = take_floats(&scratch, M * width_of_hidden(m));
  float *gradients = take_floats(&scratch, x->P), *to[2 * m->layers];
  memset(gradients, 0, sizeof(float) * x->P);
  gradients_in(m, 0, gradients, to);
  features_of(x->policy, s, B, x->obs + first * O, features);
  for (int epoch = 0; epoch < x->epochs; epoch++) {
    order_of_keys(B, x->shuffle + ((long)s * x->epochs + epoch) * B, order, sorting);
    for (long start = 0; start < B; start += M) {
      for (long i = 0; i < M; i++) {
        const long from = order[start + i];
        memcpy(inputs + i * O, features + from * O, sizeof(float) * O);
        targets[i] = x->returns[first + from];
      }
      value_forward(m, s, 0, M, inputs, hidden, values, scratch);
      x->losses[s] = squared_error(M, values, targets, 1, of_values);
      network_backward(m, s, 0, (int)M, inputs, hidden, of_values, to, scratch);
      optimizer_step(x->optimizer, s, gradients);
    }
  }
}

int trpo_fit_critic(const struct trpo_fit_critic *x) {
  return for_each(x->S, x->threads, fit_size(x), fit_of_seed, x);
}

// ---- Both ----------------------------------------------------------------------------------

struct trpo_update {
  int S, B, threads;
  const struct trpo_policy_step *step;
  const struct trpo_fit_critic *fit;
  const float *values;        // [S, B], of the rollout
  float *explained_variance;  // [S]
};

static void update_of_seed(const void *given, int s, float *scratch) {
  const struct trpo_update *x = given;
  const long B = x->B, first = s * B;
  step_of_seed(x->step, s, scratch);
  fit_of_seed(x->fit, s, scratch);
  x->explained_variance[s] =
      explained_variance_of(B, x->values + first, x->fit->returns + first);
}

int trpo_update(const struct trpo_update *x) {
  const struct trpo_policy_step *step = x->step;
  const policy *p = step->policy;
  if (!p->continuous && !are_actions((long)x->S * x->B, p->networks->columns[0], step->actions))
    return 2;
  const long one = step_size(step), other = fit_size(x->fit);
  return for_each(x->S, x->threads, one > other ? one : other, update_of_seed, x);
}
