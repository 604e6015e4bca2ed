// The multilayer perceptrons of a seed axis, forward and backward: S seeds, K networks each.
//
// Every network is computed alone and every number in one order, whatever else is in the batch and
// however many threads there are: its bits depend on its own weights and inputs only.
#include "mlp.h"

#include <stdlib.h>

// The widest vectors that this library was built with.
const char *instructions(void) { return INSTRUCTIONS; }

// ---- Matrix products -----------------------------------------------------------------------

// R rows times C vectors of columns of c = bias + a b. a(m, k) = a[m am + k ak]; b and c have rows
// of length ldb and ldc. part: how many columns of the last vector there are (0: all).
INLINE void tile(const int R, const int C, int part, int K, const float *a, long am, long ak,
                 const float *b, long ldb, const float *bias, float *c, long ldc) {
  vec sums[ROWS][COLUMNS];
#pragma GCC unroll 8
  for (int j = 0; j < C; j++) {
    vec start = {0};
    if (bias) start = part ? load_part(bias + j * WIDTH, part) : load(bias + j * WIDTH);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) sums[r][j] = start;
  }
  for (int k = 0; k < K; k++) {
    vec row[COLUMNS];
#pragma GCC unroll 8
    for (int j = 0; j < C; j++) {
      const float *p = b + k * ldb + j * WIDTH;
      row[j] = part ? load_part(p, part) : load(p);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      float x = a[r * am + k * ak];
#pragma GCC unroll 8
      for (int j = 0; j < C; j++) sums[r][j] += x * row[j];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int j = 0; j < C; j++) {
      float *p = c + r * ldc + j * WIDTH;
      if (part) store_part(p, sums[r][j], part);
      else store(p, sums[r][j]);
    }
}

// All rows of C vectors of columns.
INLINE void strip(const int C, int part, int M, int K, const float *a, long am, long ak,
                  const float *b, long ldb, const float *bias, float *c, long ldc) {
  int m = 0;
  for (; m + ROWS <= M; m += ROWS)
    tile(ROWS, C, part, K, a + m * am, am, ak, b, ldb, bias, c + m * ldc, ldc);
  for (; m + 2 <= M; m += 2)
    tile(2, C, part, K, a + m * am, am, ak, b, ldb, bias, c + m * ldc, ldc);
  for (; m < M; m++) tile(1, C, part, K, a + m * am, am, ak, b, ldb, bias, c + m * ldc, ldc);
}

// c [M, N] = bias + a [M, K] b [K, N].
static void product(int M, int N, int K, const float *a, long am, long ak, const float *b, long ldb,
                    const float *bias, float *c, long ldc) {
  int n = 0;
  for (; n + COLUMNS * WIDTH <= N; n += COLUMNS * WIDTH)
    strip(COLUMNS, 0, M, K, a, am, ak, b + n, ldb, bias ? bias + n : 0, c + n, ldc);
  for (; n + WIDTH <= N; n += WIDTH)
    strip(1, 0, M, K, a, am, ak, b + n, ldb, bias ? bias + n : 0, c + n, ldc);
  if (n < N) strip(1, N - n, M, K, a, am, ak, b + n, ldb, bias ? bias + n : 0, c + n, ldc);
}

// ---- Activations ---------------------------------------------------------------------------

// tanh by a rational function (W. J. Cody's kind; coefficients and limit as in Eigen), within 3e-7
// of it; 5e-7 where the CPU has no FMA.
INLINE vec tanh_of(vec x) {
  vec limit = all(7.90531111f);  // beyond it the quotient may exceed 1
  x = choose(x > limit, limit, choose(x < -limit, -limit, x));  // NaN stays
  vec x2 = x * x;
  vec p = x2 * -2.76076847742355e-16f + 2.00018790482477e-13f;
  p = x2 * p - 8.60467152213735e-11f;
  p = x2 * p + 5.12229709037114e-08f;
  p = x2 * p + 1.48572235717979e-05f;
  p = x2 * p + 6.37261928875436e-04f;
  p = x2 * p + 4.89352455891786e-03f;
  vec q = x2 * 1.19825839466702e-06f + 1.18534705686654e-04f;
  q = x2 * q + 2.26843463243900e-03f;
  q = x2 * q + 4.89352518554385e-03f;
  return x * p / q;
}

INLINE vec activation_of(int kind, vec x) {
  return kind == TANH ? tanh_of(x) : choose(x <= all(0), all(0), x);
}

// The gradient before an activation, from the one behind it and its output y.
INLINE vec before_activation(int kind, vec gradient, vec y) {
  return kind == TANH ? gradient * (1 - y * y) : choose(y <= all(0), all(0), gradient);
}

static void activate(int kind, float *x, long n) {
  long i = 0;
  for (; i + WIDTH <= n; i += WIDTH) store(x + i, activation_of(kind, load(x + i)));
  int rest = (int)(n - i);
  if (rest) store_part(x + i, activation_of(kind, load_part(x + i, rest)), rest);
}

static void deactivate(int kind, float *gradient, const float *y, long n) {
  long i = 0;
  for (; i + WIDTH <= n; i += WIDTH)
    store(gradient + i, before_activation(kind, load(gradient + i), load(y + i)));
  int rest = (int)(n - i);
  if (rest) {
    vec g = before_activation(kind, load_part(gradient + i, rest), load_part(y + i, rest));
    store_part(gradient + i, g, rest);
  }
}

// ---- Networks ------------------------------------------------------------------------------

// A matrix (i = 2 l) or bias (i = 2 l + 1) of layer l.
INLINE const float *parameter(const networks *m, int i, int s, int k) {
  return m->parameters[i] + s * m->strides[2 * i] + k * m->strides[2 * i + 1];
}

void network_forward(const networks *m, int s, int k, int B, const float *x, float *hidden,
                     float *y) {
  const int L = m->layers, *sizes = m->sizes;
  for (int l = 0; l < L; l++) {
    int I = sizes[l], O = sizes[l + 1], last = l == L - 1, C = last ? m->columns[k] : O;
    float *out = last ? y : hidden;
    product(B, C, I, x, I, 1, parameter(m, 2 * l, s, k), O, parameter(m, 2 * l + 1, s, k), out, C);
    if (!last) activate(m->activation, out, (long)B * O);
    x = out;
    hidden += (long)B * O;
  }
}

// Outputs of all networks for x [S, B, sizes[0]]: y[k] is [S, B, columns[k]]. hidden gets the
// outputs of the hidden layers, [S, K, (as network_forward has them)].
void mlp_forward(const networks *m, int B, const float *x, float *hidden, float *const *y) {
  const long H = width_of_hidden(m);
#pragma omp parallel for schedule(static) num_threads(m->threads) if (m->threads > 1)
  for (int n = 0; n < m->seeds * m->networks; n++) {
    int s = n / m->networks, k = n % m->networks;
    network_forward(m, s, k, B, x + (long)s * B * m->sizes[0], hidden + (long)n * B * H,
                    y[k] + (long)s * B * m->columns[k]);
  }
}

static void sum_rows(int B, int N, const float *x, float *sums) {
  for (int n = 0; n < N; n += WIDTH) {
    int part = N - n < WIDTH ? N - n : WIDTH;
    vec total = {0};
    for (int b = 0; b < B; b++) {
      const float *p = x + (long)b * N + n;
      total += part == WIDTH ? load(p) : load_part(p, part);
    }
    store_part(sums + n, total, part);
  }
}

// Gradients of all parameters, contiguous [S, K, ...]: weights and biases of each layer in turn.
// x, hidden: as mlp_forward had and left them. gy[k]: [S, B, columns[k]]. Returns 0, or 1 without
// memory.
int mlp_backward(const networks *m, int B, const float *x, const float *hidden,
                 const float *const *gy, float *const *gradients) {
  const int L = m->layers, *sizes = m->sizes;
  const long H = width_of_hidden(m);
  long widest = 0;
  for (int l = 1; l <= L; l++) widest = sizes[l] > widest ? sizes[l] : widest;
  int failed = 0;
#pragma omp parallel num_threads(m->threads) if (m->threads > 1)
  {
    float *scratch = malloc(sizeof(float) * (2 * widest * B + widest * widest));
    if (!scratch) {
#pragma omp atomic write
      failed = 1;
    }
#pragma omp for schedule(static)
    for (int n = 0; n < m->seeds * m->networks; n++) {
      if (!scratch) continue;
      int s = n / m->networks, k = n % m->networks;
      float *free_one = scratch, *other = scratch + B * widest, *turned = scratch + 2 * widest * B;
      const float *out = gy[k] + (long)s * B * m->columns[k];  // gradient behind layer l
      long end = B * H;
      for (int l = L - 1; l >= 0; l--) {
        int I = sizes[l], O = l == L - 1 ? m->columns[k] : sizes[l + 1], ld = sizes[l + 1];
        end -= l > 0 ? (long)B * I : 0;
        const float *in = l > 0 ? hidden + (long)n * B * H + end : x + (long)s * B * I;
        float *gw = gradients[2 * l] + (long)n * I * ld, *gb = gradients[2 * l + 1] + (long)n * ld;
        sum_rows(B, O, out, gb);
        product(I, O, B, in, 1, I, out, O, 0, gw, ld);
        if (l == 0) break;
        const float *w = parameter(m, 2 * l, s, k);
        for (long i = 0; i < I; i++)
          for (long o = 0; o < O; o++) turned[o * I + i] = w[i * ld + o];
        product(B, I, O, out, O, 1, turned, I, 0, free_one, I);
        deactivate(m->activation, free_one, in, (long)B * I);
        out = free_one;
        free_one = other;
        other = (float *)out;
      }
    }
    free(scratch);
  }
  return failed;
}
