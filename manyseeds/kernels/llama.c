// The layers of small Llamas, forward and backward.
#include "llama.h"

#include <math.h>

void matmul(int M, int N, int K, const float *a, const float *b, float *c, int add) {
  product(&(matrices){M, N, K, a, K, 1, b, N, c, N, add});
}

void add_outer(int M, int K, int N, const float *a, const float *b, float *gradient) {
  product(&(matrices){K, N, M, a, 1, K, b, N, gradient, N, 1});
}

void normalize(int rows, int H, double eps, const float *x, const float *gain, float *scales,
               float *y) {
  for (int r = 0; r < rows; r++, x += H, y += H) {
    scales[r] = 1 / sqrtf(dot_of_row(H, x, x) / (float)H + (float)eps);
    for (int i = 0; i < H; i += WIDTH) {
      const vec unit = load_up_to(x + i, H - i) * scales[r];
      store_up_to(y + i, unit * load_up_to(gain + i, H - i), H - i);
    }
  }
}

void normalize_again(int rows, int H, const float *x, const float *gain, const float *scales,
                     float *y) {
  for (int r = 0; r < rows; r++, x += H, y += H)
    for (int i = 0; i < H; i += WIDTH) {
      const vec unit = load_up_to(x + i, H - i) * scales[r];
      store_up_to(y + i, unit * load_up_to(gain + i, H - i), H - i);
    }
}

void through_normalize(int rows, int H, const float *x, const float *gain, const float *scales,
                       float *of_y, float *of_x, float *of_gain) {
  for (int r = 0; r < rows; r++, x += H, of_y += H, of_x += H) {
    const float scale = scales[r];
    for (int i = 0; i < H; i += WIDTH) {
      const vec g = load_up_to(of_y + i, H - i), unit = load_up_to(x + i, H - i) * scale;
      store_up_to(of_gain + i, plus_product(load_up_to(of_gain + i, H - i), g, unit), H - i);
      store_up_to(of_y + i, g * load_up_to(gain + i, H - i), H - i);
    }
    const float along = dot_of_row(H, of_y, x) * scale * scale * scale / (float)H;
    for (int i = 0; i < H; i += WIDTH) {
      const vec sum =
          plus_product(load_up_to(of_x + i, H - i), load_up_to(of_y + i, H - i), all(scale));
      store_up_to(of_x + i, plus_product(sum, all(-along), load_up_to(x + i, H - i)), H - i);
    }
  }
}

INLINE vec sigmoid_of(vec x) { return 1 / (1 + exp_of(-x)); }

// SwiGLU (Shazeer, 2020): y [rows, I] = silu(gate) up, of gate_up [rows, 2 I].
static void activate(int rows, int I, const float *gate_up, float *y) {
  for (int r = 0; r < rows; r++, gate_up += 2 * I, y += I)
    for (int i = 0; i < I; i += WIDTH) {
      const vec gate = load_up_to(gate_up + i, I - i), up = load_up_to(gate_up + I + i, I - i);
      store_up_to(y + i, gate * sigmoid_of(gate) * up, I - i);
    }
}

void through_activate(int rows, int I, const float *gate_up, const float *of_y, float *of_gate_up,
                      float *y) {
  for (int r = 0; r < rows; r++, gate_up += 2 * I, of_gate_up += 2 * I, of_y += I, y += I)
    for (int i = 0; i < I; i += WIDTH) {
      const vec gate = load_up_to(gate_up + i, I - i), up = load_up_to(gate_up + I + i, I - i);
      const vec g = load_up_to(of_y + i, I - i), s = sigmoid_of(gate), silu = gate * s;
      store_up_to(y + i, silu * up, I - i);
      store_up_to(of_gate_up + i, g * up * plus_product(s, silu, 1 - s), I - i);
      store_up_to(of_gate_up + I + i, g * silu, I - i);
    }
}

void rotations(const llama *m, int positions, float *table) {
  for (int p = 0; p < positions; p++)
    for (int i = 0; i < m->half; i++) {
      float *to = table + (long)p * 2 * m->half + i;
      sin_and_cos((float)p * m->frequencies[i], to + m->half, to);
    }
}

void rotate(const llama *m, const float *table, int rows, const int *positions, int back,
            float *qkv) {
  const int half = m->half;
  const long stride = 3 * width_of_attention(m);
  // All rows of a head, then the next: a load waits for a store just before that overlaps it.
  for (int head = 0; head < 2 * m->heads; head++, qkv += m->D)
    for (int r = 0; r < rows; r++)
      for (int i = 0; i < half; i += WIDTH) {
        const float *cosines = table + positions[r] * 2L * half, *sines = cosines + half;
        float *first = qkv + r * stride, *second = first + half;
        const vec c = load_up_to(cosines + i, half - i), s = load_up_to(sines + i, half - i);
        const vec a = load_up_to(first + i, half - i), b = load_up_to(second + i, half - i);
        const vec sine = back ? -s : s;
        store_up_to(first + i, plus_product(a * c, b, -sine), half - i);
        store_up_to(second + i, plus_product(b * c, a, sine), half - i);
      }
}

// The largest of n numbers times scale.
static float maximum_of(int n, float scale, const float *x) {
  vec most = all(-INFINITY);
  for (int i = 0; i < n; i += WIDTH) {
    const vec y = choose(lanes_before(n - i), load_up_to(x + i, n - i) * scale, all(-INFINITY));
    most = choose(y > most, y, most);
  }
  return largest_of(most);
}

// The sum of exp(scale x - top) of n numbers, which go into y unless it is null.
static float sum_of_exps(int n, float scale, const float *x, float top, float *y) {
  vec sums[PARTS] = {0};
  for (int i = 0; i < n; i += LANES) UNROLL
  for (int p = 0; p < PARTS; p++) {
    const int at = i + p * WIDTH;
    if (at >= n) continue;
    const vec e = exp_of(load_up_to(x + at, n - at) * scale - top);
    sums[p] += choose(lanes_before(n - at), e, all(0));
    if (y) store_up_to(y + at, e, n - at);
  }
  return sum_of(sums);
}

// Turns the scores of n keys into weights, in place; the `later` keys after them get 0.
static void weigh(int n, int later, float scale, float *x) {
  const float by = 1 / sum_of_exps(n, scale, x, maximum_of(n, scale, x), x);
  for (int i = 0; i < n; i += WIDTH) store_up_to(x + i, load_up_to(x + i, n - i) * by, n - i);
  memset(x + n, 0, sizeof(float) * later);
}

void logprobs_of(int V, float temperature, float *x) {
  for (int i = 0; i < V; i += WIDTH)
    store_up_to(x + i, load_up_to(x + i, V - i) / temperature, V - i);
  const float top = maximum_of(V, 1, x), log_sum = log_of_one(sum_of_exps(V, 1, x, top, 0));
  for (int i = 0; i < V; i += WIDTH)
    store_up_to(x + i, load_up_to(x + i, V - i) - top - log_sum, V - i);
}

float entropy_of(int V, const float *logp) {
  vec sums[PARTS] = {0};
  for (int i = 0; i < V; i += LANES) UNROLL
  for (int p = 0; p < PARTS; p++) {
    const int at = i + p * WIDTH;
    if (at >= V) continue;
    vec x = load_up_to(logp + at, V - at);
    x = choose(x < all(-1e4f), all(-1e4f), x);  // 0 * -inf is to be 0
    sums[p] += choose(lanes_before(V - at), exp_of(x) * x, all(0));
  }
  return -sum_of(sums);
}

void before_attention(const llama *m, const layer *w, const float *table, int rows,
                      const int *positions, const float *x, float *scales, float *y, float *qkv) {
  const int A = (int)width_of_attention(m);
  normalize(rows, m->H, m->eps, x, w->norm1, scales, y);
  matmul(rows, 3 * A, m->H, y, w->qkv, qkv, 0);
  rotate(m, table, rows, positions, 0, qkv);
}

void after_attention(const llama *m, const layer *w, int rows, const float *attended, float *middle,
                     float *scales, float *y, float *gate_up, float *active, float *next) {
  const int H = m->H, I = m->I;
  matmul(rows, H, (int)width_of_attention(m), attended, w->out, middle, 1);
  normalize(rows, H, m->eps, middle, w->norm2, scales, y);
  matmul(rows, 2 * I, H, y, w->gate_up, gate_up, 0);
  activate(rows, I, gate_up, active);
  memcpy(next, middle, sizeof(float) * rows * H);
  matmul(rows, H, I, active, w->down, next, 1);
}

void attend(const llama *m, int M, int first, const float *queries, const float *keys, long ldk,
            const float *values, long ldv, float *weights, long ldw, float *attended, long lda) {
  const int L = first + M;
  const long ldq = 3 * width_of_attention(m);
  product(&(matrices){M, L, m->D, queries, ldq, 1, keys, ldk, weights, ldw, 0});
  const float scale = 1 / sqrtf((float)m->D);
  for (int r = 0; r < M; r++) weigh(first + r + 1, M - r - 1, scale, weights + r * ldw);
  product(&(matrices){M, m->D, L, weights, ldw, 1, values, ldv, attended, lda, 0});
}

int are_tokens(const llama *m, const int64_t *row, long count, long least, long most, int padded) {
  if (count < least || count > most) return 0;
  const int64_t *tokens = padded ? row + most - count : row;
  for (long i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= m->V) return 0;
  return 1;
}
