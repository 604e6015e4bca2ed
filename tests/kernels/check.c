// Checks the kernels against plain loops in double, on any CPU: `make check-arm64`, or built by hand
// with -std=gnu11 -Imanyseeds/kernels, manyseeds/kernels/*.c and -lm.
//
// Prints a line for each kernel with its largest error; the exit status is the number of failures.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlp.h"

const char *instructions(void);
int mlp_forward(const networks *m, int B, const float *x, float *hidden, float *const *y);
int mlp_backward(const networks *m, int B, const float *x, float *hidden, const float *const *gy,
                 float *const *gradients);
int categorical_forward(long R, int A, const float *logits, const int64_t *actions,
                         float *logprobs, float *entropies, float *probabilities);
void discounted_sums(long R, long T, long N, const float *x, const float *decay, float *y);
int order_of(long R, long B, const float *keys, int64_t *order);

int mlp_tangent(const networks *m, int B, const float *x, float *hidden,
                const float *const *tangents, float *const *y);
// As in regression.c and optim.c.
typedef struct {
  long samples;
  int huber;
  const float *x;
  const int64_t *actions;
  const float *targets;
  float *losses, *outputs;
} regression;
int regress(const networks *m, const regression *r, float *const *gradients);
typedef struct {
  int seeds, networks, count, threads;
  long size;
  const long *sizes;
  const float *const *gradients;
  const unsigned char *takes_step;
  const float *max_norm;
  float *parameters, *norms;
} step;
int adam(const step *m, const double *rates, double beta1, double beta2, double eps, float *mean,
         float *square, double *powers);

static int failures = 0;

static void report(const char *what, double error, double bound) {
  int ok = error <= bound;  // not so for NaN
  failures += !ok;
  printf("%s %-40s largest error %.1e, bound %.0e\n", ok ? "ok  " : "FAIL", what, error, bound);
}

static float uniform(void) { return (float)rand() / (float)RAND_MAX * 2 - 1; }

static float *random_floats(long n, float size) {
  float *x = malloc(sizeof(float) * (size_t)n);
  for (long i = 0; i < n; i++) x[i] = uniform() * size;
  return x;
}

static double larger(double worst, double found, double right) {
  double error = fabs(found - right) / (1 + fabs(right));
  return error > worst || error != error ? error : worst;
}

// <g, J v> = <J^T g, v>: derivatives of the outputs along tangents v, by gradients that are right.
static double duality(const networks *m, int B, const float *x, float *hidden, const float *g,
                      float *const *gradients, const long *lengths) {
  const int S = m->seeds, O = m->columns[0];
  float *tangents[4], *y = calloc((size_t)(S * B * O), sizeof(float));
  double left = 0, right = 0, size = 0;
  for (int i = 0; i < 4; i++) {
    tangents[i] = random_floats(S * lengths[i], 1);
    for (long k = 0; k < S * lengths[i]; k++) right += (double)gradients[i][k] * tangents[i][k];
  }
  int failed = mlp_tangent(m, B, x, hidden, (const float *const *)tangents, &y);
  for (int i = 0; i < S * B * O; i++) {
    left += (double)g[i] * y[i];
    size += fabs((double)g[i] * y[i]);
  }
  for (int i = 0; i < 4; i++) free(tangents[i]);
  free(y);
  return failed + fabs(left - right) / (1 + size);
}

// Gradients of squared errors 2 e / B, by those of the outputs.
static double regression_error(const networks *m, int B, const float *x, float *hidden,
                               const float *y, const long *lengths) {
  const int S = m->seeds, O = m->columns[0];
  float *errors = random_floats(S * B, 1), *targets = random_floats(S * B, 1), losses[S];
  float *outputs = calloc((size_t)(S * B), sizeof(float));
  float *g = calloc((size_t)(S * B * O), sizeof(float)), *expected[4], *found[4];
  int64_t *actions = calloc((size_t)(S * B), sizeof(int64_t));
  for (int i = 0; i < S * B; i++) {
    actions[i] = i % O;
    targets[i] = y[i * O + actions[i]] - errors[i];
    g[i * O + actions[i]] = 2 * errors[i] / (float)B;
  }
  for (int i = 0; i < 4; i++) {
    expected[i] = calloc((size_t)(S * lengths[i]), sizeof(float));
    found[i] = calloc((size_t)(S * lengths[i]), sizeof(float));
  }
  const float *gy = g;
  int failed = mlp_backward(m, B, x, hidden, &gy, expected);
  regression r = {B, 0, x, actions, targets, losses, outputs};
  failed += regress(m, &r, found);
  double worst = failed;
  for (int s = 0; s < S; s++) {
    double loss = 0;
    for (int i = s * B; i < (s + 1) * B; i++) loss += (double)errors[i] * errors[i] / B;
    worst = larger(worst, losses[s], loss);
  }
  for (int i = 0; i < 4; i++)
    for (long k = 0; k < S * lengths[i]; k++) worst = larger(worst, found[i][k], expected[i][k]);
  for (int i = 0; i < 4; i++) {
    free(expected[i]);
    free(found[i]);
  }
  float *made[] = {errors, targets, outputs, g};
  for (int i = 0; i < 4; i++) free(made[i]);
  free(actions);
  return worst;
}

// One network with one hidden layer per seed: its outputs and the gradients of sum(g y).
static void check_network(int I, int H, int O, int B, int activation) {
  enum { S = 3 };
  int padded = (O + 15) / 16 * 16, sizes[] = {I, H, padded}, columns[] = {O};
  float *w0 = random_floats(S * I * H, 0.5f), *b0 = random_floats(S * H, 0.5f);
  float *w1 = random_floats(S * H * padded, 0.5f), *b1 = random_floats(S * padded, 0.5f);
  float *x = random_floats(S * B * I, 1), *g = random_floats(S * B * O, 1);
  float *hidden = calloc((size_t)(S * B * H), sizeof(float));
  float *y = calloc((size_t)(S * B * O), sizeof(float));
  const float *parameters[] = {w0, b0, w1, b1};
  float *gradients[4];
  long lengths[] = {I * H, H, H * padded, padded};
  for (int i = 0; i < 4; i++) gradients[i] = calloc((size_t)(S * lengths[i]), sizeof(float));
  long strides[] = {I * H, 0, H, 0, H * padded, 0, padded, 0};
  networks m = {S, 1, 2, activation, 1, sizes, columns, parameters, strides};
  const float *gy = g;
  int failed = mlp_forward(&m, B, x, hidden, &y);
  failed += mlp_backward(&m, B, x, hidden, &gy, gradients);

  double of_outputs = failed, of_gradients = failed;
  for (int s = 0; s < S; s++) {
    double *right[4];
    for (int i = 0; i < 4; i++) right[i] = calloc((size_t)lengths[i], sizeof(double));
    for (int b = 0; b < B; b++) {
      const float *in = x + (s * B + b) * I, *back = g + (s * B + b) * O;
      double h[H];
      for (int j = 0; j < H; j++) {
        double z = b0[s * H + j];
        for (int i = 0; i < I; i++) z += (double)in[i] * w0[(s * I + i) * H + j];
        h[j] = activation == TANH ? tanh(z) : z > 0 ? z : 0;
      }
      for (int o = 0; o < O; o++) {
        double z = b1[s * padded + o];
        for (int j = 0; j < H; j++) z += h[j] * w1[(s * H + j) * padded + o];
        of_outputs = larger(of_outputs, y[(s * B + b) * O + o], z);
        right[3][o] += back[o];
        for (int j = 0; j < H; j++) right[2][j * padded + o] += h[j] * back[o];
      }
      for (int j = 0; j < H; j++) {
        double z = 0;
        for (int o = 0; o < O; o++) z += back[o] * (double)w1[(s * H + j) * padded + o];
        z *= activation == TANH ? 1 - h[j] * h[j] : h[j] > 0;
        right[1][j] += z;
        for (int i = 0; i < I; i++) right[0][i * H + j] += z * in[i];
      }
    }
    for (int i = 0; i < 4; i++)
      for (long k = 0; k < lengths[i]; k++)
        of_gradients = larger(of_gradients, gradients[i][s * lengths[i] + k], right[i][k]);
    for (int i = 0; i < 4; i++) free(right[i]);
  }
  char what[80];
  const char *name = activation == TANH ? "tanh" : "relu";
  snprintf(what, sizeof what, "%d-%d-%d %s, %d samples: outputs", I, H, O, name, B);
  report(what, of_outputs, 1e-5);
  snprintf(what, sizeof what, "%d-%d-%d %s, %d samples: gradients", I, H, O, name, B);
  report(what, of_gradients, 1e-4);
  snprintf(what, sizeof what, "%d-%d-%d %s, %d samples: derivatives", I, H, O, name, B);
  report(what, duality(&m, B, x, hidden, g, gradients, lengths), 1e-5);
  snprintf(what, sizeof what, "%d-%d-%d %s, %d samples: regression", I, H, O, name, B);
  report(what, regression_error(&m, B, x, hidden, y, lengths), 1e-5);
  for (int i = 0; i < 4; i++) free(gradients[i]);
  float *made[] = {w0, b0, w1, b1, x, g, hidden, y};
  for (int i = 0; i < 8; i++) free(made[i]);
}

static void check_categorical(void) {
  enum { R = 50, A = 5 };
  float *logits = random_floats(R * A, 20), logprobs[R], entropies[R], probabilities[R * A];
  int64_t actions[R];
  for (int r = 0; r < R; r++) actions[r] = r % A;
  categorical_forward(R, A, logits, actions, logprobs, entropies, probabilities);
  double worst = 0;
  for (int r = 0; r < R; r++) {
    double total = 0, entropy = 0, most = logits[r * A];
    for (int a = 0; a < A; a++) most = fmax(most, logits[r * A + a]);
    for (int a = 0; a < A; a++) total += exp(logits[r * A + a] - most);
    for (int a = 0; a < A; a++) {
      double logp = logits[r * A + a] - most - log(total);
      entropy -= exp(logp) * logp;
      if (a == actions[r]) worst = larger(worst, logprobs[r], logp);
    }
    worst = larger(worst, entropies[r], entropy);
  }
  report("categorical distributions", worst, 1e-5);
  free(logits);
}

static void check_scan(void) {
  enum { R = 2, T = 30, N = 3, B = 300 };
  float *x = random_floats(R * T * N, 1), *decay = random_floats(R * T * N, 1), y[R * T * N];
  discounted_sums(R, T, N, x, decay, y);
  double worst = 0;
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) {
      double after = 0;
      for (int t = T - 1; t >= 0; t--) {
        int i = (r * T + t) * N + n;
        after = x[i] + (double)decay[i] * after;
        worst = larger(worst, y[i], after);
      }
    }
  report("discounted sums", worst, 1e-5);
  float *keys = random_floats(B, 1);
  int64_t order[B];
  for (int i = 0; i < B; i++) keys[i] = fabsf(keys[i]);
  keys[7] = keys[100];
  int wrong = order_of(1, B, keys, order);
  for (int i = 1; i < B; i++) {
    float before = keys[order[i - 1]], here = keys[order[i]];
    wrong += before > here || (before == here && order[i - 1] > order[i]);
  }
  report("orders", wrong, 0);
  free(x);
  free(decay);
  free(keys);
}

// Three steps of Adam on two parameters of two seeds, clipped.
static void check_adam(void) {
  enum { S = 2, A = 5, B = 18, P = 32 };
  long sizes[] = {A, B};
  float parameters[S * P] = {0}, mean[S * P] = {0}, square[S * P] = {0}, norms[S];
  float max_norm[] = {0.5f, 0};
  double powers[] = {1, 1, 1, 1}, rates[] = {0.1, 0.01}, worst = 0;
  double right[S * P] = {0}, m1[S * P] = {0}, m2[S * P] = {0};
  for (int t = 1; t <= 3; t++) {
    float *g[] = {random_floats(S * A, 1), random_floats(S * B, 1)};
    step m = {S, 1, 2, 1, P, sizes, (const float *const *)g, 0, max_norm, parameters, norms};
    adam(&m, rates, 0.9, 0.999, 1e-5, mean, square, powers);
    for (int s = 0; s < S; s++) {
      double squares = 0;
      for (int i = 0; i < A + B; i++) {
        double x = i < A ? g[0][s * A + i] : g[1][s * B + i - A];
        squares += x * x;
      }
      double norm = sqrt(squares), limit = max_norm[s], scale = 1;
      if (limit > 0 && limit < norm) scale = limit / (norm + 1e-6);
      worst = larger(worst, norms[s], norm);
      for (int i = 0; i < A + B; i++) {
        double x = scale * (i < A ? g[0][s * A + i] : g[1][s * B + i - A]);
        int at = s * P + i;
        m1[at] = 0.9 * m1[at] + 0.1 * x;
        m2[at] = 0.999 * m2[at] + 0.001 * x * x;
        double unbiased = m2[at] / (1 - pow(0.999, t));
        right[at] -= rates[s] * m1[at] / (1 - pow(0.9, t)) / (sqrt(unbiased) + 1e-5);
        worst = larger(worst, parameters[at], right[at]);
      }
    }
    free(g[0]);
    free(g[1]);
  }
  for (int s = 0; s < S; s++)
    for (int i = A + B; i < P; i++) worst = larger(worst, parameters[s * P + i], 0);
  report("steps of Adam", worst, 1e-5);
}

int main(void) {
  srand(1);
  printf("kernels with %s, vectors of %d floats\n", instructions(), WIDTH);
  for (int activation = TANH; activation <= RELU; activation++) {
    check_network(4, 64, 2, 128, activation);
    check_network(3, 5, 1, 7, activation);
    check_network(6, 84, 17, 33, activation);
    check_network(1, 1, 1, 1, activation);
  }
  check_categorical();
  check_scan();
  check_adam();
  return failures;
}
