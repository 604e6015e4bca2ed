// The multilayer perceptrons of a seed axis, forward and backward: S seeds, K networks each.
//
// Every network is computed alone and every number in one order, whatever else is in the batch and
// however many threads there are: its bits depend on its own weights and inputs only.
#include "mlp.h"

#include <stdlib.h>

// The widest vectors that this library was built with.
const char *instructions(void) { return INSTRUCTIONS; }

// ---- Activations ---------------------------------------------------------------------------

enum { NOTHING = -1 };  // in the place of an activation

// tanh by a rational function (coefficients and limit as in Eigen), within 3e-7 of it; 5e-7 where
// the CPU has no FMA.
INLINE vec tanh_of(vec x) {
  x = clamp_to(x, 7.90531111f);  // beyond it the quotient may exceed 1
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
  return x * p * inverse(q);
}

INLINE vec activation_of(const int kind, vec x) {
  if (kind == NOTHING) return x;
  return kind == TANH ? tanh_of(x) : choose(x <= all(0), all(0), x);
}

// The gradient before an activation, from the one behind it and its output y.
INLINE vec before_activation(const int kind, vec gradient, vec y) {
  return kind == TANH ? gradient * (1 - y * y) : choose(y <= all(0), all(0), gradient);
}

// ---- Matrix products -----------------------------------------------------------------------

// c [M, N] = f(bias + a [M, K] b [K, N]): a(m, k) = a[m am + k ak]; rows of b and c are ldb and ldc
// apart. f is an activation, or, where y [M, N] is given, the step back before the one that gave y.
typedef struct {
  int M, N, K;
  const float *a;
  long am, ak;
  const float *b;
  long ldb;
  const float *bias;  // [N], or null
  float *c;
  long ldc;
  const float *y;  // [M, N] with rows ldc apart, or null
} matrices;

// R rows from m times C vectors of columns from n. part: how many columns the last vector has (0:
// all).
INLINE void tile(const int R, const int C, const int kind, const int back, int part,
                 const matrices *x, int m, int n) {
  const float *a = x->a + m * x->am, *b = x->b + n;
  const long am = x->am, ak = x->ak, ldb = x->ldb;
  vec sums[ROWS][COLUMNS];
#pragma GCC unroll 8
  for (int j = 0; j < C; j++) {
    const float *bias = x->bias + n + j * WIDTH;
    vec start = {0};
    if (x->bias) start = part ? load_part(bias, part) : load(bias);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) sums[r][j] = start;
  }
  for (int k = 0; k < x->K; k++) {
    vec row[COLUMNS];
#pragma GCC unroll 8
    for (int j = 0; j < C; j++) {
      const float *p = b + k * ldb + j * WIDTH;
      row[j] = part ? load_part(p, part) : load(p);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      float factor = a[r * am + k * ak];
#pragma GCC unroll 8
      for (int j = 0; j < C; j++) sums[r][j] += factor * row[j];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int j = 0; j < C; j++) {
      const long place = (m + r) * x->ldc + n + j * WIDTH;
      vec z = sums[r][j];
      if (back) {
        vec y = part ? load_part(x->y + place, part) : load(x->y + place);
        z = before_activation(kind, z, y);
      } else {
        z = activation_of(kind, z);
      }
      if (part) store_part(x->c + place, z, part);
      else store(x->c + place, z);
    }
}

// All rows of C vectors of columns.
INLINE void strip(const int C, const int kind, const int back, int part, const matrices *x, int n) {
  int m = 0;
  for (; m + ROWS <= x->M; m += ROWS) tile(ROWS, C, kind, back, part, x, m, n);
  for (; m + 2 <= x->M; m += 2) tile(2, C, kind, back, part, x, m, n);
  for (; m < x->M; m++) tile(1, C, kind, back, part, x, m, n);
}

INLINE void product_with(const int kind, const int back, const matrices *x) {
  int n = 0;
  for (; n + COLUMNS * WIDTH <= x->N; n += COLUMNS * WIDTH) strip(COLUMNS, kind, back, 0, x, n);
  for (; n + WIDTH <= x->N; n += WIDTH) strip(1, kind, back, 0, x, n);
  if (n < x->N) strip(1, kind, back, x->N - n, x, n);
}

// Each kind is compiled on its own.
static void product(int kind, const matrices *x) {
  if (kind == NOTHING) product_with(NOTHING, 0, x);
  else if (kind == TANH) product_with(TANH, 0, x);
  else product_with(RELU, 0, x);
}

static void product_back(int kind, const matrices *x) {
  if (kind == TANH) product_with(TANH, 1, x);
  else product_with(RELU, 1, x);
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
    product(last ? NOTHING : m->activation,
            &(matrices){B, C, I, x, I, 1, parameter(m, 2 * l, s, k), O,
                        parameter(m, 2 * l + 1, s, k), out, C, 0});
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

// Sums over the B rows of x [B, N].
static void sum_rows(int B, int N, const float *x, float *sums) {
  int n = 0;
  for (; n + COLUMNS * WIDTH <= N; n += COLUMNS * WIDTH) {
    vec totals[COLUMNS] = {0};
    for (int b = 0; b < B; b++)
#pragma GCC unroll 8
      for (int j = 0; j < COLUMNS; j++) totals[j] += load(x + (long)b * N + n + j * WIDTH);
    for (int j = 0; j < COLUMNS; j++) store(sums + n + j * WIDTH, totals[j]);
  }
  for (; n < N; n += WIDTH) {
    int part = N - n < WIDTH ? N - n : WIDTH;
    vec total = {0};
    for (int b = 0; b < B; b++) total += load_part(x + (long)b * N + n, part);
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
        product(NOTHING, &(matrices){I, O, B, in, 1, I, out, O, 0, gw, ld, 0});
        if (l == 0) break;
        const float *w = parameter(m, 2 * l, s, k);
        for (long o = 0; o < O; o++)
          for (long i = 0; i < I; i++) turned[o * I + i] = w[i * ld + o];
        product_back(m->activation,
                     &(matrices){B, I, O, out, O, 1, turned, I, 0, free_one, I, in});
        out = free_one;
        free_one = other;
        other = (float *)out;
      }
    }
    free(scratch);
  }
  return failed;
}
