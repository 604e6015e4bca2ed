// Small Llamas of a seed axis: their parameters, and what their layers compute.
//
// Every seed is computed alone and every number in one order: its bits depend on its own parameters
// and completions only, whatever else is in the batch and however many threads there are.
//
// S seeds, B completions per seed; V tokens in the vocabulary, H the width, A = heads D that of
// attention, I that of the MLP. Matrices are [in, out]. The parameters of a seed are flat:
//
//   embedding [V, H]; of each layer: norm1 [H], qkv [H, 3 A], out [A, H], norm2 [H],
//   gate_up [H, 2 I], down [I, H]; norm [H]; head [H, V], or [H] for scalars; tied: the embedding
#pragma once
#include "functions.h"
#include "parallel.h"
#include "products.h"

// Rows that go through all layers together: what is between two layers stays in the cache.
enum { BLOCK = 96 };

typedef struct {
  int S, V, H, I, D, half, heads, layers;  // half: of D
  int tied, scalar, threads;
  long size;  // floats of a seed's parameters, padding included
  double eps;
  const float *parameters;   // [S, size]
  const float *frequencies;  // [half], of the rotations: radians per position
} llama;

// ---- Memory --------------------------------------------------------------------------------

// Memory that is laid out twice: first without a base, to know how much is needed, then with one.
typedef struct {
  float *base;
  long used;
} arena;

INLINE float *floats_in(arena *a, long n) {
  float *taken = a->base ? a->base + a->used : 0;
  a->used += floats_of(n);
  return taken;
}

INLINE int *ints_in(arena *a, long n) { return (int *)floats_in(a, n); }

// ---- Parameters ----------------------------------------------------------------------------

typedef struct {
  float *norm1, *qkv, *out, *norm2, *gate_up, *down;
} layer;

INLINE long width_of_attention(const llama *m) { return (long)m->heads * m->D; }

INLINE long size_of_layer(const llama *m) {
  const long H = m->H, A = width_of_attention(m);
  return 2 * H + 4 * H * A + 3 * H * m->I;
}

// Layer l of the parameters of a seed, or of their gradients.
INLINE layer layer_of(const llama *m, const float *of_seed, int l) {
  const long H = m->H, A = width_of_attention(m);
  layer x;
  x.norm1 = (float *)of_seed + m->V * H + l * size_of_layer(m);
  x.qkv = x.norm1 + H;
  x.out = x.qkv + H * 3 * A;
  x.norm2 = x.out + A * H;
  x.gate_up = x.norm2 + H;
  x.down = x.gate_up + H * 2 * m->I;
  return x;
}

INLINE float *norm_of_output(const llama *m, const float *of_seed) {
  return layer_of(m, of_seed, m->layers).norm1;
}

INLINE float *head_of(const llama *m, const float *of_seed) {
  return m->tied ? (float *)of_seed : norm_of_output(m, of_seed) + m->H;
}

// ---- Layers --------------------------------------------------------------------------------

// c [M, N] = a [M, K] b [K, N], plus c with `add`; rows of all three are contiguous.
void matmul(int M, int N, int K, const float *a, const float *b, float *c, int add);

// Adds a^T b to the gradient of a matrix [K, N]: a [M, K] its inputs, b [M, N] the gradients of its
// outputs.
void add_outer(int M, int K, int N, const float *a, const float *b, float *gradient);

// Zhang and Sennrich (2019): y = gain x / rms(x), row by row. scales [rows]: 1 / rms(x).
void normalize(int rows, int H, double eps, const float *x, const float *gain, float *scales,
               float *y);

// Computes y of `normalize` again from its scales.
void normalize_again(int rows, int H, const float *x, const float *gain, const float *scales,
                     float *y);

// From the gradient of y, which is overwritten: adds that of x to of_x and that of the gain to
// of_gain.
void through_normalize(int rows, int H, const float *x, const float *gain, const float *scales,
                       float *of_y, float *of_x, float *of_gain);

// The gradient of gate_up [rows, 2 I] from that of y [rows, I] = silu(gate) up; and y again.
void through_activate(int rows, int I, const float *gate_up, const float *of_y, float *of_gate_up,
                      float *y);

// Cosines and sines of the rotations of each position, [positions, 2 half].
void rotations(const llama *m, int positions, float *table);

// Su et al. (2021): rotates the queries and keys of qkv [rows, 3 A] by the angles of each row's
// position: number i of a head with number i + half. back: by the opposite angles, as gradients
// are.
void rotate(const llama *m, const float *table, int rows, const int *positions, int back,
            float *qkv);

// Turns the logits of V tokens into log-probabilities, in place.
void logprobs_of(int V, float temperature, float *x);

// The entropy of a distribution over V tokens, from their log-probabilities.
float entropy_of(int V, const float *logp);

// The part of a layer before attention, of some rows: x [rows, H] normalised, y, and from it qkv
// [rows, 3 A], rotated by positions [rows].
void before_attention(const llama *m, const layer *w, const float *table, int rows,
                      const int *positions, const float *x, float *scales, float *y, float *qkv);

// The part after attention, whose result goes to next [rows, H]. middle: x, to which what attention
// adds is added.
void after_attention(const llama *m, const layer *w, int rows, const float *attended, float *middle,
                     float *scales, float *y, float *gate_up, float *active, float *next);

// Attention of M queries of a head, the first of which is that of key `first`: attended [M, D],
// rows lda apart, and weights [M, first + M], rows ldw apart. keys [D, first + M], values [first +
// M, D].
void attend(const llama *m, int M, int first, const float *queries, const float *keys, long ldk,
            const float *values, long ldv, float *weights, long ldw, float *attended, long lda);

// Whether there are `least` to `most` tokens in a row, all in the vocabulary. padded: on the left.
int are_tokens(const llama *m, const int64_t *row, long count, long least, long most, int padded);
