// Rainbow in C: what update() of rainbow.py says, seed by seed.
//
// S seeds, C transitions in the memory of each, N environments, M per gradient step, O observation
// size, A actions, Z atoms, quantiles or values, K networks of a seed. A transition is a row of
// W = 2 O + 4 floats: obs, next_obs, action, reward, terminated, truncated.
#include <math.h>

#include "functions.h"
#include "mlp.h"
#include "optim.h"
#include "parallel.h"
#include "values.h"

enum { NONE, CATEGORICAL, QUANTILE };  // distributions
enum { TD_LOSS, Q_VALUES };

struct rainbow_update {
  int S, G, M, O, C, N, A, Z, K, P, n_steps, noise_size, threads;
  int is_double, distribution, huber;
  const networks *net, *target;             // one of each seed, or two: advantages and values
  const networks *sigma, *target_sigma;     // deviations of the weights' noise; null: not noisy
  const optimizer *optimizer;
  const int64_t *added;     // [1], transitions per seed so far
  const float *rows;        // [S, C, 2 * O + 4]
  int depth;                // of a sum tree
  double *nodes;            // [S, 2 << depth], the sum tree; null: not prioritized
  double *largest;          // [S], leaf so far; null
  const float *draws;       // [S, G, M], uniforms
  const float *noise;       // [S, G, 2, K, noise_size], standard normal
  const float *gamma;       // [S], like the next
  const returns *returns;   // what outputs stand for
  const float *v_min;       // [S], of the atoms that targets are projected onto
  const float *width;       // [S], between two of them
  const float *per_width;   // [S], 1 / width
  const float *alpha;       // [S]
  const float *beta;        // [S]
  float *metrics;           // [2, S], of the last minibatch
};

// ---- The sum tree ----------------------------------------------------------------------------

static long find(const double *nodes, int depth, double rest) {
  long node = 1;
  for (int d = 0; d < depth; d++) {
    const double left = nodes[2 * node];
    node *= 2;
    if (rest >= left) {
      rest -= left;
      node++;
    }
  }
  return node - (1L << depth);
}

static void set_leaf(double *nodes, int depth, long place, double leaf) {
  long node = place + (1L << depth);
  nodes[node] = leaf;
  for (node /= 2; node; node /= 2) nodes[node] = nodes[2 * node] + nodes[2 * node + 1];
}

// x^y of a positive x.
static float power(float x, float y) { return exp_of_one(y * log_of_one(x)); }

// ---- Noise in the weights --------------------------------------------------------------------

enum { MOST = 64 };  // layers

// Networks of seed s with noise: like m, whose parameters are now in memory of this seed alone.
typedef struct {
  networks networks;
  const float *parameters[2 * MOST];
  long strides[4 * MOST];
} noisy;

// Floats of the parameters of one network of a seed.
static long floats_of_parameters(const networks *m) {
  long total = 0;
  for (int l = 0; l < m->layers; l++) total += floats_of((m->sizes[l] + 1L) * m->sizes[l + 1]);
  return total;
}

// f(e) of noise [K, n].
static void shape_noise(long n, const float *noise, float *shaped) {
  for (long i = 0; i < n; i++) shaped[i] = copysignf(sqrtf(fabsf(noise[i])), noise[i]);
}

// Weights mu + sigma f(e_in) f(e_out)^T and biases mu + sigma f(e_out) of all networks of seed s, in
// memory of K * floats_of_parameters.
static void add_noise(noisy *to, const networks *mean, const networks *sigma, int s, long n,
                      const float *shaped, float *memory) {
  to->networks = *mean;
  to->networks.parameters = to->parameters;
  to->networks.strides = to->strides;
  const int K = mean->networks;
  long at = 0;
  for (int l = 0; l < mean->layers; l++) {
    const long I = mean->sizes[l], J = mean->sizes[l + 1], size = floats_of((I + 1) * J);
    to->parameters[2 * l] = memory;
    to->parameters[2 * l + 1] = memory + I * J;
    for (int i = 0; i < 2; i++) {
      to->strides[2 * (2 * l + i)] = 0;
      to->strides[2 * (2 * l + i) + 1] = size;
    }
    for (int k = 0; k < K; k++, memory += size) {
      const float *in = shaped + k * n + at, *out = in + I;
      const float *w = parameter(mean, 2 * l, s, k), *v = parameter(sigma, 2 * l, s, k);
      for (long i = 0; i < I; i++)
        for (long j = 0; j < J; j++)
          memory[i * J + j] = w[i * J + j] + v[i * J + j] * (in[i] * out[j]);
      w = parameter(mean, 2 * l + 1, s, k);
      v = parameter(sigma, 2 * l + 1, s, k);
      for (long j = 0; j < J; j++) memory[I * J + j] = w[j] + v[j] * out[j];
    }
    at += I + J;
  }
}

// The gradients of sigma from those of mu, of network k of a seed.
static void gradients_of_sigma(const networks *m, int k, long n, const float *shaped,
                               float *const *of_mean, float *const *of_sigma) {
  long at = 0;
  for (int l = 0; l < m->layers; l++) {
    const long I = m->sizes[l], J = m->sizes[l + 1];
    const float *in = shaped + k * n + at, *out = in + I;
    for (long i = 0; i < I; i++)
      for (long j = 0; j < J; j++)
        of_sigma[2 * l][i * J + j] = of_mean[2 * l][i * J + j] * (in[i] * out[j]);
    for (long j = 0; j < J; j++) of_sigma[2 * l + 1][j] = of_mean[2 * l + 1][j] * out[j];
    at += I + J;
  }
}

// ---- Outputs ---------------------------------------------------------------------------------

// Outputs [M, A, Z] of the networks of seed s for obs [M, O]; hidden: null, or K pointers. values:
// memory for [M, Z].
static void outputs_of(const networks *m, const returns *r, int s, long M, const float *obs,
                       float *const *hidden, float *values, float *outputs, float *scratch) {
  prepare_forward(m, s, 0, scratch);
  network_forward(m, s, 0, (int)M, obs, hidden ? hidden[0] : 0, scratch, outputs);
  if (m->networks == 1) return;
  prepare_forward(m, s, 1, scratch);
  network_forward(m, s, 1, (int)M, obs, hidden ? hidden[1] : 0, scratch, values);
  add_values(r, M, values, outputs);
}

// The action of the largest mean, for outputs [A, Z]; the first NaN counts as that.
static long best_action(const returns *r, int s, const float *outputs, float *p) {
  long best = 0;
  float most = mean_of_return(r, s, outputs, p);
  for (long a = 1; a < r->A && most == most; a++) {
    const float value = mean_of_return(r, s, outputs + a * r->Z, p);
    if (value > most || value != value) {
      most = value;
      best = a;
    }
  }
  return best;
}

// ---- Losses ----------------------------------------------------------------------------------

// The loss of outputs [Z] of the chosen action, from R, gamma^k and the outputs of the next action;
// its gradient [Z]; and what the priority is made of. p, m: memory [Z].
static float loss_of(const struct rainbow_update *x, int s, const float *outputs, float total,
                     float discount, const float *next, float *gradient, float *error, float *p,
                     float *m) {
  const long Z = x->Z;
  if (x->distribution == CATEGORICAL) {
    const float low = x->v_min[s], width = x->width[s], top = (float)(Z - 1);
    softmax_of(Z, next, p);
    memset(m, 0, sizeof(float) * Z);
    for (long z = 0; z < Z; z++) {
      const float target = total + discount * (low + width * (float)z);
      float place = (target - low) * x->per_width[s];
      place = place < 0 ? 0 : place > top ? top : place;  // NaN stays
      long lower = place == place ? (long)place : 0;
      if (lower > Z - 2) lower = Z - 2;
      const float share = place - (float)lower;
      m[lower] += p[z] * (1 - share);
      m[lower + 1] += p[z] * share;
    }
    const float norm = softmax_of(Z, outputs, p);
    float mass = 0, loss = 0;
    for (long z = 0; z < Z; z++) {
      mass += m[z];
      loss -= m[z] * (outputs[z] - norm);
    }
    for (long z = 0; z < Z; z++) gradient[z] = p[z] * mass - m[z];
    float divergence = loss;
    log_of_all(Z, m, p);
    for (long z = 0; z < Z; z++) divergence += m[z] == 0 ? 0 : m[z] * p[z];
    *error = divergence < 0 ? 0 : divergence;  // by rounding
    return loss;
  }
  if (x->distribution == QUANTILE) {
    memset(m, 0, sizeof(float) * Z);
    memset(gradient, 0, sizeof(float) * Z);
    for (long z = 0; z < Z; z++) p[z] = ((float)z + 0.5f) / (float)Z;
    for (long j = 0; j < Z; j++) {
      const float target = total + discount * next[j];
      for (long i = 0; i < Z; i++) {
        const float d = target - outputs[i], magnitude = fabsf(d);
        const float weight = fabsf(p[i] - (d < 0 ? 1.0f : 0.0f));
        m[i] += weight * (magnitude < 1 ? 0.5f * d * d : magnitude - 0.5f);
        gradient[i] -= weight * (magnitude < 1 ? d : magnitude > 0 ? copysignf(1, d) : d);
      }
    }
    float loss = 0;
    for (long i = 0; i < Z; i++) {
      loss += m[i] / (float)Z;
      gradient[i] /= (float)Z;
    }
    *error = loss;
    return loss;
  }
  const float d = outputs[0] - (total + discount * next[0]), magnitude = fabsf(d);
  *error = magnitude;
  if (!x->huber) {
    gradient[0] = 2 * d;
    return d * d;
  }
  gradient[0] = magnitude >= 1 ? copysignf(1, d) : d;  // NaN, too
  return magnitude < 1 ? 0.5f * d * d : magnitude - 0.5f;
}

// ---- Gradient steps --------------------------------------------------------------------------

// Where a minibatch's samples begin and what follows them, of M samples.
typedef struct {
  float *obs, *next_obs;       // [M, O]
  float *totals, *discounts;   // [M]: R, and gamma^k or 0
  long *places, *actions;      // [M]
} batch;

// n steps from sample i's place on.
static void steps_from(const struct rainbow_update *x, int s, const batch *b, long i) {
  const long O = x->O, W = 2 * O + 4, C = x->C, place = b->places[i];
  const float *rows = x->rows + s * C * W, *row = rows + place * W;
  const long age = (*x->added - 1 - place) % C;  // 0: the newest
  memcpy(b->obs + i * O, row, sizeof(float) * O);
  const int known = row[2 * O] >= 0 && row[2 * O] < (float)x->A;
  b->actions[i] = known ? (long)row[2 * O] : 0;
  float total = known ? 0 : NAN, discount = 1;
  for (long k = 0;; k++) {
    row = rows + (place + k * x->N) % C * W;
    total += discount * row[2 * O + 1];
    discount *= x->gamma[s];
    // Of an environment's newest transition nothing is known that follows, as if truncated.
    const int is_last = row[2 * O + 2] != 0 || row[2 * O + 3] != 0 || age < (k + 1) * x->N;
    if (is_last || k + 1 == x->n_steps) break;
  }
  memcpy(b->next_obs + i * O, row + O, sizeof(float) * O);
  b->totals[i] = total;
  b->discounts[i] = row[2 * O + 2] != 0 ? 0 : discount;
}

static void update_seed(const void *given, int s, float *scratch) {
  const struct rainbow_update *x = given;
  const networks *net = x->net, *target = x->target;
  const long M = x->M, O = x->O, A = x->A, Z = x->Z, n = x->noise_size;
  const int K = net->networks;
  const long size = *x->added < x->C ? *x->added : x->C, hidden_size = M * width_of_hidden(net);
  double *nodes = x->nodes ? x->nodes + s * (2L << x->depth) : 0;
  batch b = {.obs = take_floats(&scratch, M * O), .next_obs = take_floats(&scratch, M * O)};
  b.totals = take_floats(&scratch, M);
  b.discounts = take_floats(&scratch, M);
  b.places = (long *)take_floats(&scratch, 2 * M);
  b.actions = (long *)take_floats(&scratch, 2 * M);
  float *outputs = take_floats(&scratch, M * A * Z), *next = take_floats(&scratch, M * A * Z);
  float *choosing = take_floats(&scratch, M * A * Z), *values = take_floats(&scratch, M * Z);
  float *of_value = take_floats(&scratch, M * Z), *of_outputs = take_floats(&scratch, M * A * Z);
  float *weights = take_floats(&scratch, M), *leaves = take_floats(&scratch, M);
  float *p = take_floats(&scratch, Z), *m = take_floats(&scratch, Z);
  float *hidden[2] = {take_floats(&scratch, hidden_size), take_floats(&scratch, hidden_size)};
  float *gradients = take_floats(&scratch, x->P), *of_mean[2 * MOST], *of_sigma[2 * MOST];
  noisy with_noise[2];
  float *memory[2], *shaped[2];
  for (int i = 0; i < 2 && x->sigma; i++) {
    shaped[i] = take_floats(&scratch, K * n);
    memory[i] = take_floats(&scratch, K * floats_of_parameters(net));
  }
  memset(gradients, 0, sizeof(float) * x->P);
  double loss = 0, value = 0;
  for (int g = 0; g < x->G; g++) {
    const float *uniforms = x->draws + ((long)s * x->G + g) * M;
    for (long i = 0; i < M; i++) {
      long place = nodes ? find(nodes, x->depth, ((double)i + uniforms[i]) / (double)M * nodes[1])
                         : (long)(uniforms[i] * (float)size);
      if (place >= size) place = size - 1;  // u * size may round up
      b.places[i] = place;
      steps_from(x, s, &b, i);
      weights[i] = nodes ? (float)nodes[place + (1L << x->depth)] : 1;
    }
    if (nodes) {
      float least = weights[0];
      for (long i = 1; i < M; i++)
        if (weights[i] < least || weights[i] != weights[i]) least = weights[i];
      for (long i = 0; i < M; i++) weights[i] = power(weights[i] / least, -x->beta[s]);
    }
    for (int i = 0; i < 2 && x->sigma; i++) {
      const float *normals = x->noise + (((long)s * x->G + g) * 2 + i) * K * n;
      shape_noise(K * n, normals, shaped[i]);
      add_noise(with_noise + i, i ? x->target : x->net, i ? x->target_sigma : x->sigma, s, n,
                shaped[i], memory[i]);
      *(i ? &target : &net) = &with_noise[i].networks;
    }
    // Targets. Double: the network chooses the action, the target network says what it is worth.
    outputs_of(target, x->returns, s, M, b.next_obs, 0, values, next, scratch);
    if (x->is_double) outputs_of(net, x->returns, s, M, b.next_obs, 0, values, choosing, scratch);
    outputs_of(net, x->returns, s, M, b.obs, hidden, values, outputs, scratch);
    memset(of_outputs, 0, sizeof(float) * M * A * Z);
    loss = value = 0;
    for (long i = 0; i < M; i++) {
      const float *chooser = x->is_double ? choosing : next;
      const long best = best_action(x->returns, s, chooser + i * A * Z, p);
      const long taken = (i * A + b.actions[i]) * Z;
      float *gradient = of_outputs + taken, *all_actions = of_outputs + i * A * Z, error;
      const float own = loss_of(x, s, outputs + taken, b.totals[i], b.discounts[i],
                                next + (i * A + best) * Z, gradient, &error, p, m);
      loss += weights[i] * own;
      value += mean_of_return(x->returns, s, outputs + taken, p);
      leaves[i] = error;
      for (long z = 0; z < Z; z++) gradient[z] = gradient[z] * weights[i] / (float)M;
      if (K == 1) continue;
      for (long z = 0; z < Z; z++) of_value[i * Z + z] = gradient[z];
      for (long a = 0; a < A; a++)
        for (long z = 0; z < Z; z++) all_actions[a * Z + z] -= of_value[i * Z + z] / (float)A;
    }
    for (int k = 0; k < K; k++) {
      gradients_in(x->net, k, gradients, of_mean);
      const float *of_head = k ? of_value : of_outputs;
      network_backward(net, s, k, (int)M, b.obs, hidden[k], of_head, of_mean, scratch);
      if (!x->sigma) continue;
      gradients_in(x->sigma, k, gradients, of_sigma);
      gradients_of_sigma(x->net, k, n, shaped[0], of_mean, of_sigma);
    }
    optimizer_step(x->optimizer, s, gradients);
    for (long i = 0; i < M && nodes; i++) {
      const float leaf = power(leaves[i] + 1e-6f, x->alpha[s]);
      set_leaf(nodes, x->depth, b.places[i], leaf);
      if (leaf > x->largest[s] || leaf != leaf) x->largest[s] = leaf;
    }
  }
  x->metrics[TD_LOSS * x->S + s] = (float)(loss / (double)M);
  x->metrics[Q_VALUES * x->S + s] = (float)(value / (double)M);
}

int rainbow_update(const struct rainbow_update *x) {
  const networks *net = x->net;
  const long M = x->M, Z = x->Z, K = net->networks;
  if (!*x->added) return 2;
  const long forward = forward_scratch(net), backward = backward_scratch(net);
  long size = 2 * floats_of(M * x->O) + 4 * floats_of(M) + 2 * floats_of(2 * M) +
              4 * floats_of(M * x->A * Z) + 2 * floats_of(M * Z) + 2 * floats_of(Z) +
              2 * floats_of(M * width_of_hidden(net)) + floats_of(x->P);
  if (x->sigma)
    size += 2 * (floats_of(K * x->noise_size) + floats_of(K * floats_of_parameters(net)));
  return for_each(x->S, x->threads, size + (forward > backward ? forward : backward), update_seed, x);
}
