// The multilayer perceptrons of a seed axis, forward and backward: S seeds, K networks each.
//
// Every network is computed alone and every number in one order, whatever else is in the batch and
// however many threads there are: its bits depend on its own weights and inputs only.
#include "mlp.h"

#include <math.h>

#include "functions.h"
#include "products.h"

// The widest vectors that this library was built with.
const char *instructions(void) { return INSTRUCTIONS; }

// ---- Activations ---------------------------------------------------------------------------

INLINE vec activation_of(int kind, vec x) {
  return kind == TANH ? tanh_of(x) : choose(x <= all(0), all(0), x);
}

// The gradient before an activation, from the one behind it and its output y.
INLINE vec before_activation(int kind, vec gradient, vec y) {
  return kind == TANH ? gradient * plus_product(all(1), -y, y) : choose(y <= all(0), all(0), gradient);
}

static void activate(int kind, long n, float *x) {
  long i = 0;
  for (; i + WIDTH <= n; i += WIDTH) store(x + i, activation_of(kind, load(x + i)));
  if (i < n) store_part(x + i, activation_of(kind, load_part(x + i, n - i)), n - i);
}

static void step_back(int kind, long n, const float *y, float *gradient) {
  long i = 0;
  for (; i + WIDTH <= n; i += WIDTH) {
    vec before = before_activation(kind, load(gradient + i), load(y + i));
    store(gradient + i, before);
  }
  if (i < n) {
    vec last = load_part(gradient + i, n - i), of = load_part(y + i, n - i);
    store_part(gradient + i, before_activation(kind, last, of), n - i);
  }
}

// ---- Matrix products -----------------------------------------------------------------------

// Adds to sums[r N + n] the product of a vector of row r of a and one of row n of b; rows are K
// apart. left: how many numbers it may have. Where a has fewer rows than fit, its last is used.
INLINE void multiply(const int N, const int part, int left, int rows, int K, const float *a,
                     const float *b, vec *sums) {
  vec columns[NARROW];
UNROLL
  for (int n = 0; n < N; n++) columns[n] = part ? load_part(b + n * K, left) : load(b + n * K);
UNROLL
  for (int r = 0; r < WIDTH / N; r++) {
    const float *p = a + (long)(r < rows ? r : rows - 1) * K;
    vec row = part ? load_part(p, left) : load(p);
UNROLL
    for (int n = 0; n < N; n++)
      sums[r * N + n] = plus_product(sums[r * N + n], row, columns[n]);
  }
}

// The products of rows of a and of b over the lanes from `first` of all LANES: in each lane one.
INLINE vec dots_of_part(const int N, int first, int rows, int K, const float *a, const float *b) {
  vec sums[WIDTH] = {0};
  int k = first;
  for (; k + WIDTH <= K; k += LANES) multiply(N, 0, WIDTH, rows, K, a + k, b + k, sums);
  if (k < K) multiply(N, 1, K - k, rows, K, a + k, b + k, sums);
  return sums_of(sums);
}

// c [M, N] = bias + a [M, K] b, b turned: [N, K]. Rows of c are ldc apart, others not at all. For
// few columns, which product would compute in vectors that are mostly empty: sums of lanes over k,
// then of the lanes, as many numbers at once as a vector has.
INLINE void dots_of(const int N, int M, int K, const float *a, const float *b, const float *bias,
                    float *c, long ldc) {
  const int R = WIDTH / N;  // rows at once
  for (int m = 0; m < M; m += R, a += (long)R * K) {
    const int rows = M - m < R ? M - m : R;
    vec parts[PARTS];
UNROLL
    for (int p = 0; p < PARTS; p++) parts[p] = dots_of_part(N, p * WIDTH, rows, K, a, b);
UNROLL
    for (int d = 1; d < PARTS; d *= 2)
UNROLL
      for (int p = 0; p + d < PARTS; p += 2 * d) parts[p] += parts[p + d];
    float totals[WIDTH];
    store(totals, parts[0]);
    for (int r = 0; r < rows; r++)
      for (int n = 0; n < N; n++) c[(m + r) * ldc + n] = bias[n] + totals[r * N + n];
  }
}

static void dots(int M, int N, int K, const float *a, const float *b, const float *bias, float *c) {
  for (int n = 0; n < N; n += NARROW, b += NARROW * K, bias += NARROW) {
    if (N - n == 1) dots_of(1, M, K, a, b, bias, c + n, N);
    else if (N - n == 2) dots_of(2, M, K, a, b, bias, c + n, N);
    else if (N - n == 3) dots_of(3, M, K, a, b, bias, c + n, N);
    else dots_of(NARROW, M, K, a, b, bias, c + n, N);
  }
}

// Adds the sums over the B rows of x [B, N] to sums.
static void add_rows(int B, int N, const float *x, float *sums) {
  int n = 0;
  for (; n + COLUMNS * WIDTH <= N; n += COLUMNS * WIDTH) {
    vec totals[COLUMNS];
UNROLL
    for (int j = 0; j < COLUMNS; j++) totals[j] = load(sums + n + j * WIDTH);
    for (int b = 0; b < B; b++)
UNROLL
      for (int j = 0; j < COLUMNS; j++) totals[j] += load(x + (long)b * N + n + j * WIDTH);
UNROLL
    for (int j = 0; j < COLUMNS; j++) store(sums + n + j * WIDTH, totals[j]);
  }
  for (; n + WIDTH <= N; n += WIDTH) {
    vec total = load(sums + n);
    for (int b = 0; b < B; b++) total += load(x + (long)b * N + n);
    store(sums + n, total);
  }
  if (n < N) {
    vec total = load_part(sums + n, N - n);
    for (int b = 0; b < B; b++) total += load_part(x + (long)b * N + n, N - n);
    store_part(sums + n, total, N - n);
  }
}

// ---- Layer normalisation -------------------------------------------------------------------

// The sum of N numbers.
INLINE float sum_of_row(int N, const float *x) {
  vec sums[PARTS] = {0};
  for (int n = 0; n < N; n += LANES)
UNROLL
    for (int p = 0; p < PARTS; p++) {
      const int at = n + p * WIDTH;
      if (at < N) sums[p] += load_up_to(x + at, N - at);
    }
  return sum_of(sums);
}

// Rows of x [rows, N] in place: unit, which has mean 0 and variance 1, times the gain, plus the shift.
// units [rows, N] gets each unit and scales [rows] its factor; or both are null.
static void normalize(int rows, int N, const float *gain, const float *shift, float *x, float *units,
                      float *scales) {
  for (int r = 0; r < rows; r++, x += N) {
    const float mean = sum_of_row(N, x) / (float)N;
    for (int n = 0; n < N; n += WIDTH) store_up_to(x + n, load_up_to(x + n, N - n) - mean, N - n);
    const float scale = 1 / sqrtf(dot_of_row(N, x, x) / (float)N + 1e-5f);
    for (int n = 0; n < N; n += WIDTH) {
      const vec unit = load_up_to(x + n, N - n) * scale;
      const vec g = load_up_to(gain + n, N - n), from = load_up_to(shift + n, N - n);
      store_up_to(x + n, plus_product(from, g, unit), N - n);
      if (units) store_up_to(units + (long)r * N + n, unit, N - n);
    }
    if (scales) scales[r] = scale;
  }
}

// The derivative of a unit, in place: of a change of what was normalised, or, as it is symmetric, from
// the gradient by the unit to that by what was normalised.
static void through_unit(int N, const float *unit, float scale, float *x) {
  const float mean = sum_of_row(N, x) / (float)N, along = dot_of_row(N, x, unit) / (float)N;
  for (int n = 0; n < N; n += WIDTH) {
    const vec rest = load_up_to(x + n, N - n) - mean;
    const vec y = plus_product(rest, all(-along), load_up_to(unit + n, N - n)) * scale;
    store_up_to(x + n, y, N - n);
  }
}

// The gradient by what was normalised, in place, from that by what `normalize` made of it. Those of
// gain and shift are added to of_gain and of_shift, unless these are null.
static void through_normalize(int rows, int N, const float *gain, const float *units,
                              const float *scales, float *gradient, float *of_gain,
                              float *of_shift) {
  if (of_shift) add_rows(rows, N, gradient, of_shift);
  for (int r = 0; r < rows; r++, gradient += N, units += N) {
    for (int n = 0; n < N; n += WIDTH) {
      const vec g = load_up_to(gradient + n, N - n), unit = load_up_to(units + n, N - n);
      if (of_gain) {
        const vec sums = load_up_to(of_gain + n, N - n);
        store_up_to(of_gain + n, plus_product(sums, g, unit), N - n);
      }
      store_up_to(gradient + n, g * load_up_to(gain + n, N - n), N - n);
    }
    through_unit(N, units, scales[r], gradient);
  }
}

// The change of what `normalize` makes, in place, from that of what it is given and those of gain and
// shift.
static void change_through_normalize(int rows, int N, const float *gain, const float *of_gain,
                                     const float *of_shift, const float *units,
                                     const float *scales, float *change) {
  for (int r = 0; r < rows; r++, change += N, units += N) {
    through_unit(N, units, scales[r], change);
    for (int n = 0; n < N; n += WIDTH) {
      const vec unit = load_up_to(units + n, N - n), g = load_up_to(gain + n, N - n);
      const vec of_parameters =
          plus_product(load_up_to(of_shift + n, N - n), load_up_to(of_gain + n, N - n), unit);
      store_up_to(change + n, plus_product(of_parameters, g, load_up_to(change + n, N - n)), N - n);
    }
  }
}

// What hidden layer l keeps, of B samples: `kept` begins with its outputs.
INLINE float *units_of(const networks *m, int l, int B, const float *kept) {
  return (float *)kept + (long)B * m->sizes[l + 1];
}

INLINE float *scales_of(const networks *m, int l, int B, const float *kept) {
  return units_of(m, l, B, kept) + (long)B * m->sizes[l + 1];
}

// ---- Networks ------------------------------------------------------------------------------

void prepare_forward(const networks *m, int s, int k, float *scratch) {
  const int L = m->layers;
  turn(m->sizes[L - 1], m->columns[k], parameter(m, 2 * L - 2, s, k), m->sizes[L], scratch,
       m->sizes[L - 1]);
}

void network_forward(const networks *m, int s, int k, int B, const float *x, float *hidden,
                     float *scratch, float *y) {
  const int L = m->layers, C = m->columns[k], *sizes = m->sizes;
  const float *turned = scratch;
  float *one = scratch + (long)sizes[L - 1] * sizes[L], *other = one + BLOCK * widest_of(m);
  for (int b = 0; b < B; b += BLOCK) {
    const int rows = B - b < BLOCK ? B - b : BLOCK;
    const float *in = x + (long)b * sizes[0];
    float *kept = hidden;
    for (int l = 0; l < L - 1; l++) {
      const int I = sizes[l], O = sizes[l + 1];
      float *out = hidden ? kept + (long)b * O : l % 2 ? other : one;
      product(&(matrices){rows, O, I, in, I, 1, parameter(m, 2 * l, s, k), O, out, O, 0,
                          parameter(m, 2 * l + 1, s, k)});
      if (m->normalized)
        normalize(rows, O, parameter(m, gain_of(m, l), s, k), parameter(m, gain_of(m, l) + 1, s, k),
                  out, hidden ? units_of(m, l, B, kept) + (long)b * O : 0,
                  hidden ? scales_of(m, l, B, kept) + b : 0);
      activate(m->activation, (long)rows * O, out);
      in = out;
      kept += B * width_kept(m, l);
    }
    dots(rows, C, sizes[L - 1], in, turned, parameter(m, 2 * L - 1, s, k), y + (long)b * C);
  }
}

// What a call computes with, for all networks.
typedef struct {
  const networks *m;
  int B;
  const float *x;
  float *hidden;
  const float *const *gy;
  float *const *tangents, *const *gradients, *const *y;
} call;

// Where the samples, hidden layers and outputs of network n begin.
#define OF_NETWORK(c, n)                                                       \
  const networks *m = c->m;                                                    \
  const int B = c->B, s = n / m->networks, k = n % m->networks;                \
  const float *x = c->x + (long)s * B * m->sizes[0];                           \
  float *hidden = c->hidden ? c->hidden + (long)n * B * width_of_hidden(m) : 0; \
  const long outputs = (long)s * B * m->columns[k]

static void forward_one(const void *given, int n, float *scratch) {
  const call *c = given;
  OF_NETWORK(c, n);
  prepare_forward(m, s, k, scratch);
  network_forward(m, s, k, B, x, hidden, scratch, c->y[k] + outputs);
}

// Outputs of all networks for x [S, B, sizes[0]]: y[k] is [S, B, columns[k]]. hidden gets the
// outputs of the hidden layers, [S, K, (as network_forward has them)], or is null. Returns 0, or 1
// without memory.
int mlp_forward(const networks *m, int B, const float *x, float *hidden, float *const *y) {
  const call given = {m, B, x, hidden, 0, 0, 0, y};
  return for_each(m->seeds * m->networks, m->threads, forward_scratch(m), forward_one, &given);
}

// The matrices of layers from `first` on, turned, one behind the other. Returns where they end.
static const float *turn_layers(const networks *m, int s, int k, int first, float *to) {
  for (int l = first; l < m->layers; l++) {
    const int I = m->sizes[l], O = l == m->layers - 1 ? m->columns[k] : m->sizes[l + 1];
    turn(I, O, parameter(m, 2 * l, s, k), m->sizes[l + 1], to, I);
    to += (long)I * O;
  }
  return to;
}

void network_backward(const networks *m, int s, int k, int B, const float *x, const float *hidden,
                      const float *gy, float *const *gradients, float *scratch) {
  const int L = m->layers, *sizes = m->sizes;
  const long widest = widest_of(m);
  float *one = scratch, *other = one + BLOCK * widest;
  float *turned_gw = other + BLOCK * widest, *turned = turned_gw + NARROW * widest;
  const float *end = turn_layers(m, s, k, 1, turned);
  for (int b = 0; b < B || !b; b += BLOCK) {  // once without samples, for zeros
    const int rows = B - b < BLOCK ? B - b : BLOCK;
    const float *out = gy + (long)b * m->columns[k];  // gradient behind layer l
    const float *kept = hidden + B * width_of_hidden(m), *w = end;
    for (int l = L - 1; l >= 0; l--) {
      const int I = sizes[l], ld = sizes[l + 1], O = l == L - 1 ? m->columns[k] : ld;
      float *gw = gradients[2 * l], *gb = gradients[2 * l + 1];
      if (l > 0) kept -= B * width_kept(m, l - 1);
      const float *in = l > 0 ? kept + (long)b * I : x + (long)b * I;
      if (!b) {
        memset(gb, 0, sizeof(float) * ld);
        if (O < ld) memset(gw, 0, sizeof(float) * I * ld);  // columns that nobody uses
      }
      add_rows(rows, O, out, gb);
      if (l == L - 1 && O <= NARROW) {
        product(&(matrices){O, I, rows, out, 1, O, in, I, turned_gw, I, b > 0});
        if (b + rows == B)
          for (int i = 0; i < I; i++)
            for (int o = 0; o < O; o++) gw[(long)i * ld + o] = turned_gw[(long)o * I + i];
      } else {
        product(&(matrices){I, O, rows, in, 1, I, out, O, gw, ld, b > 0});
      }
      if (l == 0) break;
      w -= (long)I * O;
      product(&(matrices){rows, I, O, out, O, 1, w, I, one, I, 0});
      step_back(m->activation, (long)rows * I, in, one);
      if (m->normalized) {
        const int i = gain_of(m, l - 1);
        if (!b) memset(gradients[i], 0, sizeof(float) * I);
        if (!b) memset(gradients[i + 1], 0, sizeof(float) * I);
        through_normalize(rows, I, parameter(m, i, s, k), units_of(m, l - 1, B, kept) + (long)b * I,
                          scales_of(m, l - 1, B, kept) + b, one, gradients[i], gradients[i + 1]);
      }
      out = one;
      one = other;
      other = (float *)out;
    }
  }
}

void network_input_gradient(const networks *m, int s, int k, int B, const float *hidden,
                            const float *gy, float *gx, float *scratch) {
  const int L = m->layers, *sizes = m->sizes;
  const long widest = widest_of(m);
  float *turned = scratch + 2 * BLOCK * widest;
  const float *end = turn_layers(m, s, k, 0, turned);
  for (int b = 0; b < B; b += BLOCK) {
    const int rows = B - b < BLOCK ? B - b : BLOCK;
    const float *out = gy + (long)b * m->columns[k];  // gradient behind layer l
    const float *kept = hidden + B * width_of_hidden(m), *w = end;
    for (int l = L - 1; l >= 0; l--) {
      const int I = sizes[l], O = l == L - 1 ? m->columns[k] : sizes[l + 1];
      float *in = l ? scratch + (l % 2 ? BLOCK * widest : 0) : gx + (long)b * I;
      w -= (long)I * O;
      product(&(matrices){rows, I, O, out, O, 1, w, I, in, I, 0});
      if (l == 0) break;
      kept -= B * width_kept(m, l - 1);
      step_back(m->activation, (long)rows * I, kept + (long)b * I, in);
      if (m->normalized)
        through_normalize(rows, I, parameter(m, gain_of(m, l - 1), s, k),
                          units_of(m, l - 1, B, kept) + (long)b * I,
                          scales_of(m, l - 1, B, kept) + b, in, 0, 0);
      out = in;
    }
  }
}

// What belongs to network n of tensors that are contiguous [S, K, ...], one for each parameter.
static void of_network(const networks *m, long n, float *const *all, float **own) {
  for (int l = 0; l < m->layers; l++) {
    const long I = m->sizes[l], O = m->sizes[l + 1];
    own[2 * l] = all[2 * l] + n * I * O;
    own[2 * l + 1] = all[2 * l + 1] + n * O;
  }
  for (int i = 2 * m->layers; i < parameters_of(m); i++)
    own[i] = all[i] + n * m->sizes[(i - 2 * m->layers) / 2 + 1];
}

static void backward_one(const void *given, int n, float *scratch) {
  const call *c = given;
  OF_NETWORK(c, n);
  float *gradients[parameters_of(m)];
  of_network(m, n, c->gradients, gradients);
  network_backward(m, s, k, B, x, hidden, c->gy[k] + outputs, gradients, scratch);
}

// Gradients of all parameters, contiguous [S, K, ...], in their order; 0 of columns that are not used.
// x, hidden: as mlp_forward had and left them. gy[k]: [S, B, columns[k]]. Returns 0, or 1 without
// memory.
int mlp_backward(const networks *m, int B, const float *x, float *hidden, const float *const *gy,
                 float *const *gradients) {
  const call given = {m, B, x, hidden, gy, 0, gradients, 0};
  return for_each(m->seeds * m->networks, m->threads, backward_scratch(m), backward_one, &given);
}

void network_tangent(const networks *m, int s, int k, int B, const float *x, const float *hidden,
                     float *const *tangents, float *y, float *scratch) {
  const int L = m->layers, *sizes = m->sizes;
  const int I = sizes[L - 1], C = m->columns[k];
  const long widest = widest_of(m);
  float *head = scratch + 2 * BLOCK * widest, *of_head = head + (long)I * C;
  float *more = of_head + (long)I * C, *nothing = more + BLOCK * C;
  turn(I, C, parameter(m, 2 * L - 2, s, k), sizes[L], head, I);
  turn(I, C, tangents[2 * L - 2], sizes[L], of_head, I);
  memset(nothing, 0, sizeof(float) * C);
  for (int b = 0; b < B; b += BLOCK) {
    const int rows = B - b < BLOCK ? B - b : BLOCK;
    const float *in = x + (long)b * sizes[0], *kept = hidden, *change = 0;  // change: of in
    for (int l = 0; l < L - 1; l++) {
      const int from = sizes[l], to = sizes[l + 1];
      const float *dw = tangents[2 * l], *db = tangents[2 * l + 1];
      const float *w = parameter(m, 2 * l, s, k);
      float *out = scratch + (l % 2 ? BLOCK * widest : 0);
      product(&(matrices){rows, to, from, in, from, 1, dw, to, out, to, 0, db});
      if (change) product(&(matrices){rows, to, from, change, from, 1, w, to, out, to, 1});
      in = kept + (long)b * to;
      if (m->normalized) {
        const int i = gain_of(m, l);
        change_through_normalize(rows, to, parameter(m, i, s, k), tangents[i], tangents[i + 1],
                                 units_of(m, l, B, kept) + (long)b * to,
                                 scales_of(m, l, B, kept) + b, out);
      }
      kept += B * width_kept(m, l);
      step_back(m->activation, (long)rows * to, in, out);
      change = out;
    }
    float *out = y + (long)b * C;
    dots(rows, C, I, in, of_head, tangents[2 * L - 1], out);
    if (!change) continue;
    dots(rows, C, I, change, head, nothing, more);
    for (int i = 0; i < rows * C; i++) out[i] += more[i];
  }
}

static void tangent_one(const void *given, int n, float *scratch) {
  const call *c = given;
  OF_NETWORK(c, n);
  float *tangents[parameters_of(m)];
  of_network(m, n, c->tangents, tangents);
  network_tangent(m, s, k, B, x, hidden, tangents, c->y[k] + outputs, scratch);
}

// The derivatives y[k] [S, B, columns[k]] of all outputs along tangents, one for each parameter,
// contiguous [S, K, ...]. x, hidden: as mlp_forward had and left them. Returns 0, or 1 without
// memory.
int mlp_tangent(const networks *m, int B, const float *x, float *hidden,
                float *const *tangents, float *const *y) {
  const call given = {m, B, x, hidden, 0, tangents, 0, y};
  return for_each(m->seeds * m->networks, m->threads, tangent_scratch(m), tangent_one, &given);
}
