// GRPO in C: what evaluate_samples(), backpropagate() and update() of grpo.py say, seed by seed.
//
// S seeds, L steps, K groups of G episodes, B = L K G samples, M per gradient step, O observation
// size, D components of a continuous action, P parameters.
#include <math.h>

#include "distributions.h"
#include "functions.h"
#include "optim.h"
#include "policy.h"
#include "scan.h"

static int is_valid(const policy *p, long count, const void *actions) {
  return p->continuous || are_actions(count, p->networks->columns[0], actions);
}

// ---- The samples of an update --------------------------------------------------------------

enum { RETURN_TO_GO, OUTCOME, PROCESS };
enum { BY_GROUP, BY_BATCH, BY_NOTHING };
enum { CHUNK = 256 };  // samples that the policies see at once
static const float EQUAL = 1e-5f;  // relative: sums of the same rewards in another order

struct grpo_estimate {
  int S, L, K, G, O, advantage, all_peers, std, threads;
  const policy *policy;
  const policy *reference;                  // null: the policy itself
  const float *obs;                         // [S, L, K, G, O]
  const void *actions;                      // int64 [S, L, K, G], or floats with D components each
  const float *rewards;                     // [S, L, K, G], 0 after the end
  const unsigned char *alive;               // [S, L, K, G]
  const float *gamma;                       // [S]
  float *logprobs, *reference_logprobs, *advantages;  // [S, L, K, G], 0 after the end
  unsigned char *mask;                      // [S, L, K, G], which samples to learn from
  float *entropy, *zero_variance;           // [S]
};

// r_t + gamma r_{t+1} + ... for N episodes of L steps.
static void returns_to_go(long L, long N, const float *rewards, float gamma, float *returns) {
  for (long i = L * N - 1; i >= 0; i--)
    returns[i] = rewards[i] + (i < (L - 1) * N ? gamma * returns[i + N] : 0);
}

// x minus the mean over its peers (null: all), divided by their deviation; of R rows of G numbers,
// `stride` apart. 0 for what is no peer.
static void compare(long R, long G, long stride, const float *x, const unsigned char *peers,
                    int divide, float *y) {
  double total = 0, squares = 0, count = 0;
  float high = -INFINITY, low = INFINITY;
  int is_number = 1;
#define EACH_PEER(i)                                   \
  for (long r = 0; r < R; r++)                         \
    for (long i = r * stride; i < r * stride + G; i++) \
      if (!peers || peers[i])
  EACH_PEER(i) {
    total += x[i];
    count++;
    if (x[i] > high) high = x[i];
    if (x[i] < low) low = x[i];
    is_number &= x[i] == x[i];
  }
  // Equal but for rounding: exactly 0, not rounding noise over rounding noise.
  const float most = fabsf(high) > fabsf(low) ? fabsf(high) : fabsf(low);
  const int tells = count > 0 && !(is_number && high - low <= EQUAL * most);
  const double mean = total / count;
  for (long r = 0; r < R; r++)
    for (long i = r * stride; i < r * stride + G; i++)
      y[i] = tells && (!peers || peers[i]) ? (float)(x[i] - mean) : 0;
  if (!divide || !tells) return;
  EACH_PEER(i) squares += (double)y[i] * y[i];
  const float deviation = (float)(sqrt(squares / (count > 1 ? count - 1 : 1)) + 1e-8);
  EACH_PEER(i) y[i] /= deviation;
}

// The advantages of seed s [L, K, G]. returns: memory of that size.
static void advantages_of_seed(const struct grpo_estimate *x, int s, float *returns) {
  const long L = x->L, K = x->K, G = x->G, N = K * G, B = L * N;
  const unsigned char *alive = x->alive + s * B, *peers = x->all_peers ? 0 : alive;
  const float *rewards = x->rewards + s * B;
  float *advantages = x->advantages + s * B;
  const int divide = x->std == BY_GROUP;
  const float gamma = x->gamma[s];
  if (x->advantage == PROCESS) {
    for (long k = 0; k < N; k += G)
      compare(L, G, N, rewards + k, peers ? peers + k : 0, divide, returns + k);
    for (long i = 0; i < B; i++) returns[i] = alive[i] ? returns[i] : 0;
    returns_to_go(L, N, returns, gamma, advantages);
  } else {
    returns_to_go(L, N, rewards, gamma, returns);
    // Rows of G, one behind the other.
    for (long i = 0; i < (x->advantage == OUTCOME ? N : B); i += G)
      compare(1, G, G, returns + i, peers && x->advantage != OUTCOME ? peers + i : 0, divide,
              advantages + i);
    for (long i = N; x->advantage == OUTCOME && i < B; i++) advantages[i] = advantages[i - N];
  }
  double squares = 0, count = 0;
  for (long i = 0; i < B; i++) {
    if (!alive[i]) advantages[i] = 0;
    squares += (double)advantages[i] * advantages[i];
    count += alive[i];
  }
  const float deviation = (float)(sqrt(squares / (count > 1 ? count - 1 : 1)) + 1e-8);
  for (long i = 0; x->std == BY_BATCH && i < B; i++) advantages[i] /= deviation;
}

// Which samples to learn from; returns the share of groups that are left out.
static float choose_groups(const struct grpo_estimate *x, int s) {
  const long K = x->K, G = x->G, N = K * G, B = x->L * N, first = s * B;
  long informative = 0;
  for (long k = 0; k < K; k++) {
    int tells = 0;
    for (long i = k * G; i < B; i += N)
      for (long g = i; g < i + G; g++) tells |= x->advantages[first + g] != 0;
    for (long i = k * G; i < B; i += N)
      for (long g = i; g < i + G; g++) x->mask[first + g] = tells && x->alive[first + g];
    informative += tells;
  }
  return 1 - (float)informative / (float)K;
}

// Memory of CHUNK samples.
typedef struct {
  evaluated policy;
  float *features;
  void *actions;
  int64_t *places;
} chunk;

static long chunk_size(const policy *p) {
  return evaluated_size(p, CHUNK) + floats_of(CHUNK * p->O) + floats_of_actions(p, CHUNK) +
         floats_of(2 * CHUNK);
}

static chunk chunk_in(const policy *p, float **scratch) {
  chunk c;
  c.policy = evaluated_in(p, CHUNK, scratch);
  c.features = take_floats(scratch, CHUNK * p->O);
  c.actions = *scratch;
  *scratch += floats_of_actions(p, CHUNK);
  c.places = (int64_t *)take_floats(scratch, 2 * CHUNK);
  return c;
}

// Log-probabilities [B] by a policy, 0 after the end; returns the mean entropy.
static float evaluate(const struct grpo_estimate *x, const policy *p, int s, chunk *c,
                      float *logprobs, float *scratch) {
  const long B = (long)x->L * x->K * x->G, first = s * B;
  double entropy = 0, steps = 0;
  for (long i = 0; i < B;) {
    long M = 0;
    for (; i < B && M < CHUNK; i++) {
      logprobs[i] = 0;
      if (!x->alive[first + i]) continue;
      features_of(p, s, 1, x->obs + (first + i) * x->O, c->features + M * x->O);
      copy_action(p, x->actions, first + i, c->actions, M);
      c->places[M++] = i;
    }
    policy_forward(p, s, M, c->features, c->actions, &c->policy, scratch);
    for (long m = 0; m < M; m++) {
      logprobs[c->places[m]] = c->policy.logprobs[m];
      entropy += c->policy.entropies[m];
    }
    steps += (double)M;
  }
  return (float)(entropy / (steps > 0 ? steps : 1));
}

static void estimate_seed(const void *given, int s, float *scratch) {
  const struct grpo_estimate *x = given;
  const long B = (long)x->L * x->K * x->G;
  float *returns = take_floats(&scratch, B), *wanted = x->reference_logprobs + s * B;
  chunk c = chunk_in(x->policy, &scratch);
  advantages_of_seed(x, s, returns);
  x->zero_variance[s] = choose_groups(x, s);
  x->entropy[s] = evaluate(x, x->policy, s, &c, x->logprobs + s * B, scratch);
  if (x->reference) evaluate(x, x->reference, s, &c, wanted, scratch);
  else memcpy(wanted, x->logprobs + s * B, sizeof(float) * B);
}

int grpo_estimate(const struct grpo_estimate *x) {
  const long B = (long)x->L * x->K * x->G;
  if (!is_valid(x->policy, x->S * B, x->actions)) return 2;
  const long size = floats_of(B) + chunk_size(x->policy) + policy_scratch(x->policy);
  return for_each(x->S, x->threads, size, estimate_seed, x);
}

// ---- The loss of a minibatch ---------------------------------------------------------------

// What it is computed with, beside the samples.
typedef struct {
  int S, has_penalty;                    // of the KL to the reference
  const policy *policy;
  const float *low, *high;               // [S], bounds of the ratio
  const float *entropy_coef, *kl_coef;   // [S]
} grpo_settings;

enum { POLICY_LOSS, APPROX_KL, CLIPFRAC, KL, METRICS };

// Samples of a seed, and memory to compute the gradient of as many.
typedef struct {
  float *features;  // [M, O]
  void *actions;
  float *logprobs, *reference, *advantages;  // [M]
} samples;

typedef struct {
  evaluated policy;
  float *log_ratios, *ratios, *to_reference, *of_logprobs, *of_entropies;  // [M]
} workspace;

static long samples_size(const policy *p, long M) {
  return floats_of(M * p->O) + floats_of_actions(p, M) + 3 * floats_of(M);
}

static samples samples_in(const policy *p, long M, float **scratch) {
  samples b;
  b.features = take_floats(scratch, M * p->O);
  b.actions = *scratch;
  *scratch += floats_of_actions(p, M);
  b.logprobs = take_floats(scratch, M);
  b.reference = take_floats(scratch, M);
  b.advantages = take_floats(scratch, M);
  return b;
}

static long workspace_size(const policy *p, long M) {
  return evaluated_size(p, M) + 5 * floats_of(M) + policy_scratch(p);
}

static workspace workspace_in(const policy *p, long M, float **scratch) {
  workspace w;
  w.policy = evaluated_in(p, M, scratch);
  w.log_ratios = take_floats(scratch, M);
  w.ratios = take_floats(scratch, M);
  w.to_reference = take_floats(scratch, M);
  w.of_logprobs = take_floats(scratch, M);
  w.of_entropies = take_floats(scratch, M);
  return w;
}

// The gradients of seed s [P] and the metrics [METRICS] of M samples.
static void gradient(const grpo_settings *c, int s, long M, const samples *b, workspace *w,
                     float *gradients, float *metrics, float *scratch) {
  const float low = c->low[s], high = c->high[s], share = 1 / (float)M;
  double loss = 0, approximate = 0, clipped = 0, penalty = 0;
  policy_forward(c->policy, s, M, b->features, b->actions, &w->policy, scratch);
  for (long i = 0; i < M; i++) {
    w->log_ratios[i] = w->policy.logprobs[i] - b->logprobs[i];
    w->to_reference[i] = b->reference[i] - w->policy.logprobs[i];
    w->of_entropies[i] = -c->entropy_coef[s] * share;
  }
  exp_of_all(M, w->log_ratios, w->ratios);
  for (long i = 0; i < M; i++) {
    const float ratio = w->ratios[i], gain = ratio * b->advantages[i];
    const float cut = (ratio < low ? low : ratio > high ? high : ratio) * b->advantages[i];
    const int is_cut = cut < gain;  // not so for NaN
    loss -= is_cut ? cut : gain;
    w->of_logprobs[i] = is_cut ? 0 * ratio : -gain * share;  // NaN where the ratio is infinite
    approximate += ratio - 1 - w->log_ratios[i];
    clipped += ratio < low || ratio > high;
  }
  if (c->has_penalty) {
    exp_of_all(M, w->to_reference, w->ratios);
    for (long i = 0; i < M; i++) {
      penalty += w->ratios[i] - w->to_reference[i] - 1;
      w->of_logprobs[i] += c->kl_coef[s] * (1 - w->ratios[i]) * share;
    }
  }
  policy_backward(c->policy, s, M, b->features, b->actions, &w->policy, w->of_logprobs,
                  c->entropy_coef[s] != 0 ? w->of_entropies : 0, gradients, scratch);
  metrics[POLICY_LOSS] = (float)(loss / (double)M);
  metrics[APPROX_KL] = (float)(approximate / (double)M);
  metrics[CLIPFRAC] = (float)(clipped / (double)M);
  metrics[KL] = (float)(penalty / (double)M);
}

// Samples of all seeds, as Python has them.
typedef struct {
  int S, O;
  long B;
  const float *obs;                                // [S, B, O]
  const void *actions;                             // int64 [S, B], or floats with D components each
  const float *logprobs, *reference, *advantages;  // [S, B]
} grpo_batch;

// Copies the samples of seed s that are in the mask [B]; returns how many.
static long pack(const grpo_batch *x, const policy *p, int s, const unsigned char *mask, samples *b) {
  const long O = x->O;
  long count = 0;
  for (long i = 0; i < x->B; i++) {
    if (!mask[i]) continue;
    const long from = s * x->B + i;
    features_of(p, s, 1, x->obs + from * O, b->features + count * O);
    copy_action(p, x->actions, from, b->actions, count);
    b->logprobs[count] = x->logprobs[from];
    b->reference[count] = x->reference[from];
    b->advantages[count++] = x->advantages[from];
  }
  return count;
}

struct grpo_gradient {
  int S, threads;
  long B, P;
  const grpo_settings *settings;
  const grpo_batch *batch;
  const unsigned char *mask;  // [S, B], which samples count
  float *gradients;           // [S, P], 0 where nothing is written
  float *metrics;             // [S, 4], 0 likewise
};

static void gradient_of_seed(const void *given, int s, float *scratch) {
  const struct grpo_gradient *x = given;
  const policy *p = x->settings->policy;
  samples b = samples_in(p, x->B, &scratch);
  workspace w = workspace_in(p, x->B, &scratch);
  const long M = pack(x->batch, p, s, x->mask + s * x->B, &b);
  if (M)
    gradient(x->settings, s, M, &b, &w, x->gradients + s * x->P, x->metrics + s * METRICS, scratch);
}

int grpo_gradient(const struct grpo_gradient *x) {
  const policy *p = x->settings->policy;
  if (!is_valid(p, x->S * x->B, x->batch->actions)) return 2;
  const long size = samples_size(p, x->B) + workspace_size(p, x->B);
  return for_each(x->S, x->threads, size, gradient_of_seed, x);
}

// ---- All epochs over the samples -----------------------------------------------------------

struct grpo_update {
  int S, M, epochs, threads;  // M: at most
  long B, P;
  const grpo_settings *settings;
  const optimizer *optimizer;
  const grpo_batch *batch;
  const unsigned char *mask;    // [S, B], which samples to learn from
  const unsigned char *active;  // [S]
  const float *shuffle;         // [S, epochs, B], keys of each epoch's order
  float *metrics;               // [S, 4], of the last step; 0 where nothing is written
};

// Copies M samples.
static void gather(const policy *p, long M, const int64_t *indices, const samples *from,
                   samples *b) {
  const long O = p->O;
  for (long m = 0; m < M; m++) {
    const long i = indices[m];
    memcpy(b->features + m * O, from->features + i * O, sizeof(float) * O);
    copy_action(p, from->actions, i, b->actions, m);
    b->logprobs[m] = from->logprobs[i];
    b->reference[m] = from->reference[i];
    b->advantages[m] = from->advantages[i];
  }
}

static int is_informative(long M, const float *advantages) {
  for (long i = 0; i < M; i++)
    if (advantages[i] != 0) return 1;
  return 0;
}

static long most_of(const struct grpo_update *x) { return x->M < x->B ? x->M : x->B; }

static void update_of_seed(const void *given, int s, float *scratch) {
  const struct grpo_update *x = given;
  const policy *p = x->settings->policy;
  const long B = x->B, M = most_of(x);
  const unsigned char *mask = x->mask + s * B;
  samples everything = samples_in(p, B, &scratch), b = samples_in(p, M, &scratch);
  float *keys = take_floats(&scratch, B), *sorting = take_floats(&scratch, order_scratch(B));
  int64_t *order = (int64_t *)take_floats(&scratch, 2 * B);
  float *gradients = take_floats(&scratch, x->P);
  workspace w = workspace_in(p, M, &scratch);
  if (!x->active[s]) return;
  memset(gradients, 0, sizeof(float) * x->P);
  const long count = pack(x->batch, p, s, mask, &everything);
  const long parts = (count + x->M - 1) / x->M;  // as few as possible
  for (int epoch = 0; epoch < x->epochs; epoch++) {
    const float *shuffle = x->shuffle + ((long)s * x->epochs + epoch) * B;
    for (long i = 0, k = 0; i < B; i++)
      if (mask[i]) keys[k++] = shuffle[i];
    order_of_keys(count, keys, order, sorting);
    for (long j = 0; j < parts; j++) {
      const long start = j * count / parts, size = (j + 1) * count / parts - start;
      gather(p, size, order + start, &everything, &b);
      // With nothing to learn from there is no step: Adam's momentum would move the policy.
      if (!is_informative(size, b.advantages)) continue;
      gradient(x->settings, s, size, &b, &w, gradients, x->metrics + s * METRICS, scratch);
      optimizer_step(x->optimizer, s, gradients);
    }
  }
}

int grpo_update(const struct grpo_update *x) {
  const policy *p = x->settings->policy;
  if (!is_valid(p, x->S * x->B, x->batch->actions)) return 2;
  const long B = x->B, M = most_of(x);
  const long size = samples_size(p, B) + samples_size(p, M) + floats_of(B) +
                    floats_of(order_scratch(B)) + floats_of(2 * B) + floats_of(x->P) +
                    workspace_size(p, M);
  return for_each(x->S, x->threads, size, update_of_seed, x);
}
