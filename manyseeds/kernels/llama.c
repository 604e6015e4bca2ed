// Small Llamas of a seed axis: log-probabilities or scalars of completions, and their gradients.
//
// Every seed is computed alone and every number in one order: its bits depend on its own parameters
// and completions only. No padding is computed, and completions with the same history share it: the
// tokens of a seed are a tree, each node the token behind its parent, in which a completion is the
// path from a root to a leaf.
//
// S seeds, B completions per seed; V tokens in the vocabulary, H the width, A = heads D that of
// attention, I that of the MLP. Matrices are [in, out]. Per seed the parameters are flat:
//
//   embedding [V, H]; of each layer: norm1 [H], qkv [H, 3 A], out [A, H], norm2 [H],
//   gate_up [H, 2 I], down [I, H]; norm [H]; head [H, V], [H] for scalars, or the embedding (tied)
#include <float.h>
#include <math.h>

#include "functions.h"
#include "parallel.h"
#include "products.h"

enum { BLOCK = 96 };  // nodes that go through all layers together: what is between stays in the cache

typedef struct {
  int S, V, H, I, D, half, heads, layers;  // half: of D
  int tied, scalar, threads;
  long size;  // floats of a seed's parameters, padding included
  double eps;
  const float *parameters;   // [S, size]
  const float *frequencies;  // [half], of the rotations: radians per place
} llama;

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
static layer layer_of(const llama *m, const float *of_seed, int l) {
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

// ---- What layers consist of ------------------------------------------------------------------

// c [M, N] = a [M, K] b [K, N], or with `add` plus c; rows of all three without gaps.
static void times(int M, int N, int K, const float *a, const float *b, float *c, int add) {
  product(&(matrices){M, N, K, a, K, 1, b, N, c, N, add});
}

// The gradient of a matrix [K, N], to which a^T b is added: a [M, K] its inputs, b [M, N] the
// gradients of its outputs.
static void add_outer(int M, int K, int N, const float *a, const float *b, float *gradient) {
  product(&(matrices){K, N, M, a, 1, K, b, N, gradient, N, 1});
}

// Zhang and Sennrich (2019): y = gain x / rms(x), row by row. scales [rows]: 1 / rms(x).
static void normalize(int rows, int H, double eps, const float *x, const float *gain, float *scales,
                      float *y) {
  for (int r = 0; r < rows; r++, x += H, y += H) {
    scales[r] = 1 / sqrtf(dot_of_row(H, x, x) / (float)H + (float)eps);
    for (int i = 0; i < H; i += WIDTH) {
      const vec unit = load_up_to(x + i, H - i) * scales[r];
      store_up_to(y + i, unit * load_up_to(gain + i, H - i), H - i);
    }
  }
}

// y of `normalize` again, from its scales.
static void normalize_again(int rows, int H, const float *x, const float *gain, const float *scales,
                            float *y) {
  for (int r = 0; r < rows; r++, x += H, y += H)
    for (int i = 0; i < H; i += WIDTH) {
      const vec unit = load_up_to(x + i, H - i) * scales[r];
      store_up_to(y + i, unit * load_up_to(gain + i, H - i), H - i);
    }
}

// From the gradient of y, which is overwritten: that of x is added to of_x, that of the gain to of_gain.
static void through_normalize(int rows, int H, const float *x, const float *gain, const float *scales,
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
      const vec sum = plus_product(load_up_to(of_x + i, H - i), load_up_to(of_y + i, H - i), all(scale));
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

// The gradient of gate_up from that of y; and y again.
static void through_activate(int rows, int I, const float *gate_up, const float *of_y,
                             float *of_gate_up, float *y) {
  for (int r = 0; r < rows; r++, gate_up += 2 * I, of_gate_up += 2 * I, of_y += I, y += I)
    for (int i = 0; i < I; i += WIDTH) {
      const vec gate = load_up_to(gate_up + i, I - i), up = load_up_to(gate_up + I + i, I - i);
      const vec g = load_up_to(of_y + i, I - i), s = sigmoid_of(gate), silu = gate * s;
      store_up_to(y + i, silu * up, I - i);
      store_up_to(of_gate_up + i, g * up * plus_product(s, silu, 1 - s), I - i);
      store_up_to(of_gate_up + I + i, g * silu, I - i);
    }
}

// Cosines and sines of the rotations of each place, [places, 2 half].
static void rotations(const llama *m, int places, float *table) {
  for (int p = 0; p < places; p++)
    for (int i = 0; i < m->half; i++) {
      float *to = table + (long)p * 2 * m->half + i;
      sin_and_cos((float)p * m->frequencies[i], to + m->half, to);
    }
}

// Su et al. (2021): queries and keys of qkv [3 A] are rotated by the angles of their place, number i
// of a head with number i + half. back: by the opposite angles, as gradients are.
static void rotate(const llama *m, const float *table, int place, int back, float *qkv) {
  const int half = m->half;
  const float *cosines = table + (long)place * 2 * half, *sines = cosines + half;
  for (int head = 0; head < 2 * m->heads; head++, qkv += m->D)
    for (int i = 0; i < half; i += WIDTH) {
      const vec c = load_up_to(cosines + i, half - i), s = load_up_to(sines + i, half - i);
      const vec a = load_up_to(qkv + i, half - i), b = load_up_to(qkv + half + i, half - i);
      const vec sine = back ? -s : s;
      store_up_to(qkv + i, plus_product(a * c, b, -sine), half - i);
      store_up_to(qkv + half + i, plus_product(b * c, a, sine), half - i);
    }
}

// The largest of n numbers.
static float maximum_of(int n, const float *x) {
  vec most = all(-INFINITY);
  for (int i = 0; i < n; i += WIDTH) {
    const vec y = choose(lanes_before(n - i), load_up_to(x + i, n - i), all(-INFINITY));
    most = choose(y > most, y, most);
  }
  return largest_of(most);
}

// The sum of exp(x - top) of n numbers, which go into y unless it is null.
static float sum_of_exps(int n, const float *x, float top, float *y) {
  vec sums[PARTS] = {0};
  for (int i = 0; i < n; i += LANES)
UNROLL
    for (int p = 0; p < PARTS; p++) {
      const int at = i + p * WIDTH;
      if (at >= n) continue;
      const vec e = exp_of(load_up_to(x + at, n - at) - top);
      sums[p] += choose(lanes_before(n - at), e, all(0));
      if (y) store_up_to(y + at, e, n - at);
    }
  return sum_of(sums);
}

// The weights of n keys from their scores, in place; those of `later` keys behind them are 0.
static void weigh(int n, int later, float scale, float *x) {
  for (int i = 0; i < n; i += WIDTH) store_up_to(x + i, load_up_to(x + i, n - i) * scale, n - i);
  const float by = 1 / sum_of_exps(n, x, maximum_of(n, x), x);
  for (int i = 0; i < n; i += WIDTH) store_up_to(x + i, load_up_to(x + i, n - i) * by, n - i);
  memset(x + n, 0, sizeof(float) * later);
}

// Log-probabilities of V tokens from their logits, in place.
static void log_softmax(int V, float temperature, float *x) {
  for (int i = 0; i < V; i += WIDTH) store_up_to(x + i, load_up_to(x + i, V - i) / temperature, V - i);
  const float top = maximum_of(V, x), log_sum = log_of_one(sum_of_exps(V, x, top, 0));
  for (int i = 0; i < V; i += WIDTH)
    store_up_to(x + i, load_up_to(x + i, V - i) - top - log_sum, V - i);
}

// The entropy of a distribution over V tokens, from their log-probabilities.
static float entropy_of(int V, const float *logp) {
  vec sums[PARTS] = {0};
  for (int i = 0; i < V; i += LANES)
UNROLL
    for (int p = 0; p < PARTS; p++) {
      const int at = i + p * WIDTH;
      if (at >= V) continue;
      vec x = load_up_to(logp + at, V - at);
      x = choose(x < all(-1e4f), all(-1e4f), x);  // 0 * -inf is to be 0
      sums[p] += choose(lanes_before(V - at), exp_of(x) * x, all(0));
    }
  return -sum_of(sums);
}

// What is in front of the attention of layer x, of some rows: of x [rows, H] the normalised y, and qkv
// [rows, 3 A], rotated. places [rows].
static void before_attention(const llama *m, const layer *w, const float *table, int rows,
                             const int *places, const float *x, float *scales, float *y, float *qkv) {
  const int A = (int)width_of_attention(m);
  normalize(rows, m->H, m->eps, x, w->norm1, scales, y);
  times(rows, 3 * A, m->H, y, w->qkv, qkv, 0);
  for (int r = 0; r < rows; r++) rotate(m, table, places[r], 0, qkv + r * 3L * A);
}

// What is behind it: next [rows, H], which may be x. middle: x and what attention adds to it.
static void after_attention(const llama *m, const layer *w, int rows, const float *x,
                            const float *attended, float *middle, float *scales, float *y,
                            float *gate_up, float *active, float *next) {
  const int H = m->H, I = m->I;
  memcpy(middle, x, sizeof(float) * rows * H);
  times(rows, H, (int)width_of_attention(m), attended, w->out, middle, 1);
  normalize(rows, H, m->eps, middle, w->norm2, scales, y);
  times(rows, 2 * I, H, y, w->gate_up, gate_up, 0);
  activate(rows, I, gate_up, active);
  memcpy(next, middle, sizeof(float) * rows * H);
  times(rows, H, I, active, w->down, next, 1);
}

// Attention of M queries of a head, the first of which is that of key `first`: attended [M, D], rows lda
// apart, and weights [M, first + M], rows ldw apart. keys [D, first + M], values [first + M, D].
static void attend(const llama *m, int M, int first, const float *queries, const float *keys, long ldk,
                   const float *values, long ldv, float *weights, long ldw, float *attended,
                   long lda) {
  const int L = first + M;
  const long ldq = 3 * width_of_attention(m);
  product(&(matrices){M, L, m->D, queries, ldq, 1, keys, ldk, weights, ldw, 0});
  const float scale = 1 / sqrtf((float)m->D);
  for (int r = 0; r < M; r++) weigh(first + r + 1, M - r - 1, scale, weights + r * ldw);
  product(&(matrices){M, m->D, L, weights, ldw, 1, values, ldv, attended, lda, 0});
}

// ---- The tree of a seed's completions ---------------------------------------------------------

typedef struct {
  int S, B, P, T;
  long N;                         // nodes that a seed has at most: the inputs of all its completions
  const int64_t *prompts;         // [S, B, P], padded on the left
  const int64_t *prompt_lengths;  // [S, B], at least 1
  const int64_t *tokens;          // [S, B, T], padded on the right
  const int64_t *lengths;         // [S, B]
} completions;

// Nodes are numbered in the order of the completions that need them first. A piece is a chain of nodes,
// each the parent of the next, within a block.
typedef struct {
  int count, pieces;
  int *token, *parent, *place;  // [N]; parent -1: none
  int *read;                    // [N], whether the output is that of a completion
  int *first;                   // [pieces + 1]
  int *leaf;                    // [B], -1: nothing is computed for this completion
  int *child, *sibling;         // [N], while it grows
} tree;

// Outputs of a completion with some tokens: the scalar model has one behind each, and before the first.
INLINE long outputs_of(const llama *m, long tokens) { return tokens + m->scalar; }

INLINE long most_pieces(const completions *c) { return c->B + c->N / BLOCK + 2; }

INLINE long size_of_tree(const completions *c) {
  return 6 * floats_of(c->N) + floats_of(most_pieces(c)) + floats_of(c->B);
}

static int *take_ints(float **scratch, long n) { return (int *)take_floats(scratch, n); }

static tree grow(const llama *m, const completions *c, int s, float **scratch) {
  tree t = {0};
  int **arrays[] = {&t.token, &t.parent, &t.place, &t.read, &t.child, &t.sibling};
  for (int i = 0; i < 6; i++) *arrays[i] = take_ints(scratch, c->N);
  t.first = take_ints(scratch, most_pieces(c));
  t.leaf = take_ints(scratch, c->B);
  int root = -1;  // the first child of none
  for (int b = 0; b < c->B; b++) {
    const long row = (long)s * c->B + b, prompt = c->prompt_lengths[row], n = c->lengths[row];
    const int64_t *before = c->prompts + (row + 1) * c->P - prompt, *after = c->tokens + row * c->T;
    const long outputs = outputs_of(m, n), inputs = outputs ? prompt + outputs - 1 : 0;
    int node = -1, is_new = 0;
    for (int j = 0; j < inputs; j++) {
      const int token = (int)(j < prompt ? before[j] : after[j - prompt]);
      int *children = node < 0 ? &root : t.child + node, next = is_new ? -1 : *children;
      while (next >= 0 && t.token[next] != token) next = t.sibling[next];
      if (next < 0) {
        next = t.count++;
        t.token[next] = token;
        t.parent[next] = node;
        t.place[next] = j;
        t.read[next] = 0;
        t.child[next] = -1;
        t.sibling[next] = *children;
        *children = next;
        if (!is_new || next % BLOCK == 0) t.first[t.pieces++] = next;
        is_new = 1;
      }
      node = next;
    }
    t.leaf[b] = node;
    for (long o = 0; o < outputs; o++, node = t.parent[node]) t.read[node] = 1;
  }
  t.first[t.pieces] = t.count;
  return t;
}

// The nodes from a root to a piece that begins with node `first` and has M: path [place of the last + 1].
static int path_to(const tree *t, int first, int M, int *path) {
  const int before = t->place[first];
  for (int i = before - 1, node = t->parent[first]; i >= 0; i--, node = t->parent[node])
    path[i] = node;
  for (int i = 0; i < M; i++) path[before + i] = first + i;
  return before + M;
}

// Of the nodes of a path, what of the rows [N, 3 A] of qkv begins at the column `turned`, as [A, L], and
// at the column `plain`, as [L, A]. Rows of the former are ld apart.
static void gather(long A, int L, const int *path, const float *qkv, long turned, float *as_columns,
                   long ld, long plain, float *as_rows) {
  for (int i = 0; i < L;) {
    int n = 1;
    while (i + n < L && path[i + n] == path[i] + n) n++;
    const float *from = qkv + path[i] * 3 * A;
    turn(n, (int)A, from + turned, 3 * A, as_columns + i, ld);
    for (int j = 0; j < n; j++)
      memcpy(as_rows + (i + j) * A, from + j * 3 * A + plain, sizeof(float) * A);
    i += n;
  }
}

// ---- Forward -------------------------------------------------------------------------------

// What a layer computes, row by row. Without gradients only qkv has rows for all nodes.
typedef struct {
  float *x, *scales1, *qkv, *weights, *attended, *middle, *scales2, *gate_up;
} memory;

// The width of a row of each, and of the rows of what is behind all layers: x and its scale.
typedef struct {
  long H, A, L, weights, outputs;  // L: keys of a query, padded
} widths;

static widths widths_of(const llama *m, const completions *c) {
  const long L = floats_of(c->P + c->T);
  return (widths){m->H, width_of_attention(m), L, m->heads * L, m->scalar ? 1 : m->V};
}

INLINE long size_of_memory(const llama *m, const completions *c, long N) {
  const widths w = widths_of(m, c);
  return 2 * floats_of(N * w.H) + 2 * floats_of(N) + floats_of(N * 3 * w.A) +
         floats_of(N * w.weights) + floats_of(N * w.A) + floats_of(N * 2 * m->I);
}

static memory take_memory(const llama *m, const completions *c, long N, float **from) {
  const widths w = widths_of(m, c);
  memory k;
  k.x = take_floats(from, N * w.H);
  k.middle = take_floats(from, N * w.H);
  k.scales1 = take_floats(from, N);
  k.scales2 = take_floats(from, N);
  k.qkv = take_floats(from, N * 3 * w.A);
  k.weights = take_floats(from, N * w.weights);
  k.attended = take_floats(from, N * w.A);
  k.gate_up = take_floats(from, N * 2 * m->I);
  return k;
}

// The rows of a memory from node n.
static memory rows_from(const llama *m, const widths *w, memory k, long n) {
  k.x += n * w->H;
  k.middle += n * w->H;
  k.scales1 += n;
  k.scales2 += n;
  k.qkv += n * 3 * w->A;
  k.weights += n * w->weights;
  k.attended += n * w->A;
  k.gate_up += n * 2 * m->I;
  return k;
}

struct llama_forward {
  int S, B, O, threads;       // O: outputs of a completion, T or for scalars T + 1
  long kept_size;             // 0: nothing is kept
  const llama *model;
  const completions *completions;
  const float *temperatures;  // [S]
  float *memory;              // [S, kept_size]; null
  float *outputs;             // [S, B, O]: log-probabilities of tokens, or scalars; 0 behind the last
  float *entropies;           // [S, B, O]; null: of scalars
};

// Floats that the gradients of a seed need, of N nodes.
static long size_kept(const llama *m, const completions *c) {
  const widths w = widths_of(m, c);
  return m->layers * (size_of_memory(m, c, c->N) + floats_of(c->N * 3 * w.A)) +
         floats_of(c->N * w.H) + floats_of(c->N) + floats_of(c->N * w.outputs);
}

// As kept: layers, then what is behind them.
typedef struct {
  float *x, *scales, *outputs;  // [N, H], [N], and log-probabilities [N, V] or scalars [N]
} output;

static output take_output(const llama *m, const completions *c, long N, float **from) {
  output k;
  k.x = take_floats(from, N * m->H);
  k.scales = take_floats(from, N);
  k.outputs = take_floats(from, c->N * widths_of(m, c).outputs);
  return k;
}

static long scratch_of_forward(const llama *m, const completions *c, int keeps) {
  const widths w = widths_of(m, c);
  long size = size_of_tree(c) + floats_of((c->P + c->T) * 2L * m->half) + floats_of(w.L);
  size += floats_of(BLOCK * w.H) + floats_of(BLOCK * (long)m->I) + 2 * floats_of(w.A * w.L);
  if (m->tied && !m->scalar) size += floats_of((long)m->H * m->V);
  if (keeps) return size;
  size += size_of_memory(m, c, BLOCK) + m->layers * floats_of(c->N * 3 * w.A);
  return size + floats_of(BLOCK * w.H) + floats_of(BLOCK) + floats_of(c->N * w.outputs);
}

static void forward_seed(const void *given, int s, float *scratch) {
  const struct llama_forward *f = given;
  const llama *m = f->model;
  const completions *c = f->completions;
  const widths w = widths_of(m, c);
  const float *p = m->parameters + s * m->size;
  const int H = m->H, V = m->V, keeps = f->kept_size > 0;
  const tree t = grow(m, c, s, &scratch);
  float *table = take_floats(&scratch, (c->P + c->T) * 2L * m->half);
  rotations(m, c->P + c->T, table);
  int *path = take_ints(&scratch, w.L);
  float *y = take_floats(&scratch, BLOCK * w.H), *active = take_floats(&scratch, BLOCK * (long)m->I);
  float *keys = take_floats(&scratch, w.A * w.L), *values = take_floats(&scratch, w.A * w.L);
  const float *head = head_of(m, p);  // [H, V] or [H]
  if (m->tied && !m->scalar) {
    float *turned = take_floats(&scratch, (long)H * V);
    turn(V, H, head, H, turned, V);
    head = turned;
  }
  memory all_rows[m->layers], rows[m->layers + 1];
  float *from = keeps ? f->memory + s * f->kept_size : scratch;
  if (keeps) {
    for (int l = 0; l < m->layers; l++) all_rows[l] = take_memory(m, c, c->N, &from);
  } else {
    const memory shared = take_memory(m, c, BLOCK, &from);
    for (int l = 0; l < m->layers; l++) {
      all_rows[l] = shared;
      all_rows[l].qkv = take_floats(&from, c->N * 3 * w.A);
    }
  }
  const output out = take_output(m, c, keeps ? c->N : BLOCK, &from);

  for (int first = 0, piece = 0; first < t.count; first += BLOCK) {
    const int n = t.count - first < BLOCK ? t.count - first : BLOCK, row = keeps ? first : 0;
    for (int l = 0; l < m->layers; l++) {
      rows[l] = rows_from(m, &w, all_rows[l], row);
      rows[l].qkv = all_rows[l].qkv + first * 3 * w.A;
    }
    rows[m->layers].x = out.x + (long)row * H;
    for (int i = 0; i < n; i++)
      memcpy(rows[0].x + (long)i * H, p + (long)t.token[first + i] * H, sizeof(float) * H);
    int end = piece;  // of the pieces of this block
    while (end < t.pieces && t.first[end] < first + n) end++;
    for (int l = 0; l < m->layers; l++) {
      const layer of = layer_of(m, p, l);
      const memory *k = rows + l;
      before_attention(m, &of, table, n, t.place + first, k->x, k->scales1, y, k->qkv);
      for (int q = piece; q < end; q++) {
        const int M = t.first[q + 1] - t.first[q], at = t.first[q] - first;
        const int L = path_to(&t, t.first[q], M, path);
        gather(w.A, L, path, all_rows[l].qkv, w.A, keys, w.L, 2 * w.A, values);
        for (int h = 0; h < m->heads; h++)
          attend(m, M, L - M, k->qkv + at * 3 * w.A + h * m->D, keys + h * m->D * w.L, w.L,
                 values + h * m->D, w.A, k->weights + at * w.weights + h * w.L, w.weights,
                 k->attended + at * w.A + h * m->D, w.A);
      }
      after_attention(m, &of, n, k->x, k->attended, k->middle, k->scales2, y, k->gate_up, active,
                      rows[l + 1].x);
    }
    normalize(n, H, m->eps, rows[m->layers].x, norm_of_output(m, p), out.scales + row, y);
    for (int i = 0; i < n;) {  // runs of nodes whose outputs are read
      int count = 0;
      while (i + count < n && t.read[first + i + count]) count++;
      float *to = out.outputs + (first + i) * w.outputs;
      if (m->scalar) {
        for (int r = 0; r < count; r++) to[r] = dot_of_row(H, y + (long)(i + r) * H, head);
      } else if (count) {
        times(count, V, H, y + (long)i * H, head, to, 0);
        for (int r = 0; r < count; r++) log_softmax(V, f->temperatures[s], to + (long)r * V);
      }
      i += count ? count : 1;
    }
    piece = end;
  }

  for (int b = 0; b < c->B; b++) {
    const long at = (long)s * c->B + b, outputs = outputs_of(m, c->lengths[at]);
    for (long o = outputs; o < f->O; o++) {
      f->outputs[at * f->O + o] = 0;
      if (f->entropies) f->entropies[at * f->O + o] = 0;
    }
    int node = t.leaf[b];
    for (long o = outputs - 1; o >= 0; o--, node = t.parent[node]) {
      const float *of = out.outputs + node * w.outputs;
      f->outputs[at * f->O + o] = m->scalar ? *of : of[c->tokens[at * c->T + o]];
      if (f->entropies) f->entropies[at * f->O + o] = entropy_of(V, of);
    }
  }
}

// Whether there are `least` to `most` tokens, and all in the vocabulary. padded: on the left.
static int are_tokens(const llama *m, const int64_t *row, long count, long least, long most, int padded) {
  if (count < least || count > most) return 0;
  const int64_t *tokens = padded ? row + most - count : row;
  for (long i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= m->V) return 0;
  return 1;
}

static int are_completions(const llama *m, const completions *c) {
  for (long row = 0; row < (long)c->S * c->B; row++)
    if (!are_tokens(m, c->prompts + row * c->P, c->prompt_lengths[row], 1, c->P, 1) ||
        !are_tokens(m, c->tokens + row * c->T, c->lengths[row], 0, c->T, 0))
      return 0;
  return 1;
}

int llama_forward(const struct llama_forward *f) {
  const llama *m = f->model;
  if (!are_completions(m, f->completions)) return 2;
  const long size = scratch_of_forward(m, f->completions, f->kept_size > 0);
  return for_each(f->S, f->threads, size, forward_seed, f);
}

struct llama_sizes {
  const llama *model;
  const completions *completions;
  int64_t *kept_size;  // [1], floats that llama_forward keeps for llama_backward, of a seed
};

int llama_sizes(const struct llama_sizes *x) {
  x->kept_size[0] = size_kept(x->model, x->completions);
  return 0;
}

// ---- Backward ------------------------------------------------------------------------------

struct llama_backward {
  int S, B, O, threads;
  long kept_size, size;
  const llama *model;
  const completions *completions;
  const float *temperatures;  // [S]
  float *memory;              // [S, kept_size], as llama_forward left it
  const float *of_outputs;    // [S, B, O], the gradients of outputs
  const float *of_entropies;  // [S, B, O]; null
  float *gradients;           // [S, size]
};

// The matrices of a layer, turned.
typedef struct {
  float *qkv, *out, *gate_up, *down;
} turned_layer;

static turned_layer turn_layer(const llama *m, const layer *of, float **scratch) {
  const int H = m->H, I = m->I, A = (int)width_of_attention(m);
  turned_layer x;
  x.qkv = take_floats(scratch, 3L * A * H);
  x.out = take_floats(scratch, (long)H * A);
  x.gate_up = take_floats(scratch, 2L * I * H);
  x.down = take_floats(scratch, (long)H * I);
  turn(H, 3 * A, of->qkv, 3 * A, x.qkv, H);
  turn(A, H, of->out, H, x.out, A);
  turn(H, 2 * I, of->gate_up, 2 * I, x.gate_up, H);
  turn(I, H, of->down, H, x.down, I);
  return x;
}

static long scratch_of_backward(const llama *m, const completions *c, int O) {
  const widths w = widths_of(m, c);
  const long H = m->H, I = m->I, A = w.A;
  long size = size_of_tree(c) + floats_of((long)c->B * O) + floats_of((c->P + c->T) * 2L * m->half);
  size += m->layers * (floats_of(3 * A * H) + floats_of(H * A) + floats_of(2 * I * H) + floats_of(H * I));
  if (!m->tied && !m->scalar) size += floats_of(m->V * H);
  size += floats_of(w.L) + 4 * floats_of(A * w.L) + floats_of(BLOCK * w.L);
  size += 3 * floats_of(BLOCK * H) + 2 * floats_of(BLOCK * I) + floats_of(BLOCK * 2 * I);
  return size + floats_of(BLOCK * A) + floats_of(BLOCK * w.outputs);
}

// What a seed's gradients are computed with.
typedef struct {
  const struct llama_backward *given;
  const llama *m;
  widths w;
  const float *p, *of_outputs, *of_entropies;
  float *gradients, temperature;
  tree t;
  int *pair, *next;  // of each node [N] its first output b O + o with a gradient; of each the next
  float *table;      // of rotations
  const float *head;  // [V, H] or [H]
  int *path;
  float *keys, *values, *of_keys, *of_values, *of_weights;
  float *of_x, *of_y, *y, *of_active, *active, *of_gate_up, *of_attended, *of_logits;
} backward;

// The gradient of the logits [V] of a node, from its log-probabilities: of the probability of token a, for
// which output o of a completion has the gradient g, it is g (1 - p) at a and -g p elsewhere.
static void through_log_softmax(const backward *x, int node, const float *logp, float *of_logits) {
  const int V = x->m->V, O = x->given->O;
  float total = 0, of_entropy = 0;
  for (int i = x->pair[node]; i >= 0; i = x->next[i]) {
    total += x->of_outputs[i];
    if (x->of_entropies) of_entropy += x->of_entropies[i];
  }
  const float entropy = of_entropy != 0 ? entropy_of(V, logp) : 0;
  for (int i = 0; i < V; i += WIDTH) {
    const vec l = load_up_to(logp + i, V - i), p = exp_of(l);
    vec slope = all(total);  // what a probability is multiplied by
    if (of_entropy != 0)  // dH / dz = -p (log p + H)
      slope += of_entropy * (choose(l < all(-1e4f), all(-1e4f), l) + entropy);
    store_up_to(of_logits + i, -p * slope, V - i);
  }
  const completions *c = x->given->completions;
  for (int i = x->pair[node]; i >= 0; i = x->next[i]) {
    const long row = (x->of_outputs - x->given->of_outputs) / O + i / O;
    of_logits[c->tokens[row * c->T + i % O]] += x->of_outputs[i];
  }
  for (int i = 0; i < V; i += WIDTH)
    store_up_to(of_logits + i, load_up_to(of_logits + i, V - i) / x->temperature, V - i);
}

// From the gradients of the outputs of nodes [first, first + n): of_y, that of what the head is given, y.
static void through_head(backward *x, int first, int n, const float *outputs) {
  const llama *m = x->m;
  const int H = m->H, V = m->V;
  float *of_head = head_of(m, x->gradients);
  memset(x->of_y, 0, sizeof(float) * n * H);
  for (int i = 0; i < n;) {  // runs of nodes whose outputs have gradients
    int count = 0;
    while (i + count < n && x->pair[first + i + count] >= 0) count++;
    float *of_y = x->of_y + (long)i * H;
    const float *y = x->y + (long)i * H;
    if (m->scalar) {
      for (int r = 0; r < count; r++) {
        float g = 0;
        for (int k = x->pair[first + i + r]; k >= 0; k = x->next[k]) g += x->of_outputs[k];
        for (int j = 0; j < H; j++) of_y[(long)r * H + j] = g * x->head[j];
        for (int j = 0; j < H; j++) of_head[j] += g * y[(long)r * H + j];
      }
    } else if (count) {
      for (int r = 0; r < count; r++) {
        const long node = first + i + r;
        through_log_softmax(x, (int)node, outputs + node * V, x->of_logits + (long)r * V);
      }
      times(count, H, V, x->of_logits, x->head, of_y, 0);
      if (m->tied) add_outer(count, V, H, x->of_logits, y, of_head);
      else add_outer(count, H, V, y, x->of_logits, of_head);
    }
    i += count ? count : 1;
  }
}

// The gradients of queries, keys and values of M nodes of a piece from that of what they attended; k: the
// rows of the layer from the first of them, as are of_attended. qkv and of_qkv are those of all nodes.
static void through_attention(backward *x, int first, int M, const memory *k, const float *of_attended,
                              const float *qkv, float *of_qkv) {
  const int D = x->m->D, L = path_to(&x->t, first, M, x->path);
  const long A = x->w.A, ld = x->w.L, ldw = x->w.weights;
  const float scale = 1 / sqrtf((float)D);
  gather(A, L, x->path, qkv, 2 * A, x->values, ld, A, x->keys);
  for (int h = 0; h < x->m->heads; h++) {
    const float *weights = k->weights + h * ld, *of_y = of_attended + h * D;
    float *of_scores = x->of_weights;
    product(&(matrices){M, L, D, of_y, A, 1, x->values + h * D * ld, ld, of_scores, ld, 0});
    for (int r = 0; r < M; r++) {
      const int n = L - M + r + 1;  // keys of this query
      float *row = of_scores + r * ld;
      const vec along = all(dot_of_row(n, row, weights + r * ldw));
      for (int i = 0; i < n; i += WIDTH) {
        const vec weight = load_up_to(weights + r * ldw + i, n - i);
        store_up_to(row + i, weight * (load_up_to(row + i, n - i) - along) * scale, n - i);
      }
      memset(row + n, 0, sizeof(float) * (L - n));
    }
    product(&(matrices){M, D, L, of_scores, ld, 1, x->keys + h * D, A,
                        of_qkv + first * 3 * A + h * D, 3 * A, 0});
    product(&(matrices){L, D, M, of_scores, 1, ld, k->qkv + h * D, 3 * A, x->of_keys + h * D, A, 0});
    product(&(matrices){L, D, M, weights, 1, ldw, of_y, A, x->of_values + h * D, A, 0});
  }
  for (int i = 0; i < L; i++) {
    float *to = of_qkv + x->path[i] * 3 * A;
    for (int j = 0; j < A; j++) to[A + j] += x->of_keys[i * A + j];
    for (int j = 0; j < A; j++) to[2 * A + j] += x->of_values[i * A + j];
  }
}

static void backward_seed(const void *given, int s, float *scratch) {
  const struct llama_backward *f = given;
  const llama *m = f->model;
  const completions *c = f->completions;
  const int H = m->H, I = m->I, V = m->V, layers = m->layers;
  const float *p = m->parameters + s * m->size;
  const long outputs = (long)s * c->B * f->O;
  backward x = {.given = f, .m = m, .w = widths_of(m, c), .p = p};
  x.of_outputs = f->of_outputs + outputs;
  x.of_entropies = f->of_entropies ? f->of_entropies + outputs : 0;
  x.gradients = f->gradients + s * m->size;
  x.temperature = f->temperatures[s];
  x.t = grow(m, c, s, &scratch);
  const tree *t = &x.t;
  const long A = x.w.A;
  memset(x.gradients, 0, sizeof(float) * m->size);

  // Only nodes with a gradient, and those in front of them, are computed. The memory that the tree has
  // grown with is free now.
  int *needed = t->sibling;
  x.pair = t->child;
  x.next = take_ints(&scratch, (long)c->B * f->O);
  for (int i = 0; i < t->count; i++) x.pair[i] = -1, needed[i] = 0;
  for (int b = c->B - 1; b >= 0; b--) {
    int node = t->leaf[b];
    for (long o = outputs_of(m, c->lengths[(long)s * c->B + b]) - 1; o >= 0; o--) {
      const int i = (int)(b * (long)f->O + o);
      if (x.of_outputs[i] != 0 || (x.of_entropies && x.of_entropies[i] != 0)) {
        x.next[i] = x.pair[node];
        x.pair[node] = i;
        for (int a = node; a >= 0 && !needed[a]; a = t->parent[a]) needed[a] = 1;
      }
      node = t->parent[node];
    }
  }

  x.table = take_floats(&scratch, (c->P + c->T) * 2L * m->half);
  rotations(m, c->P + c->T, x.table);
  turned_layer turned[layers];
  for (int l = 0; l < layers; l++) {
    const layer of = layer_of(m, p, l);
    turned[l] = turn_layer(m, &of, &scratch);
  }
  x.head = head_of(m, p);
  if (!m->tied && !m->scalar) {
    float *by_token = take_floats(&scratch, (long)V * H);
    turn(H, V, x.head, V, by_token, H);
    x.head = by_token;
  }
  x.path = take_ints(&scratch, x.w.L);
  float **paths[] = {&x.keys, &x.values, &x.of_keys, &x.of_values};
  for (int i = 0; i < 4; i++) *paths[i] = take_floats(&scratch, A * x.w.L);
  x.of_weights = take_floats(&scratch, BLOCK * x.w.L);
  x.of_x = take_floats(&scratch, BLOCK * (long)H);
  x.of_y = take_floats(&scratch, BLOCK * (long)H);
  x.y = take_floats(&scratch, BLOCK * (long)H);
  x.of_active = take_floats(&scratch, BLOCK * (long)I);
  x.active = take_floats(&scratch, BLOCK * (long)I);
  x.of_gate_up = take_floats(&scratch, BLOCK * 2L * I);
  x.of_attended = take_floats(&scratch, BLOCK * A);
  x.of_logits = take_floats(&scratch, BLOCK * x.w.outputs);

  float *from = f->memory + s * f->kept_size;
  memory all_rows[layers];
  for (int l = 0; l < layers; l++) all_rows[l] = take_memory(m, c, c->N, &from);
  const output out = take_output(m, c, c->N, &from);
  float *of_qkv[layers];  // keys and values get gradients from all that follow them
  for (int l = 0; l < layers; l++) {
    of_qkv[l] = take_floats(&from, c->N * 3 * A);
    memset(of_qkv[l], 0, sizeof(float) * t->count * 3 * A);
  }

  // Runs of needed nodes within a block, from the last: what follows a node comes before it.
  for (int end = t->count, piece = t->pieces; end > 0;) {
    int first = end;
    const int block = (end - 1) / BLOCK * BLOCK;
    while (first > block && needed[first - 1]) first--;
    const int n = end - first;
    if (!n) {
      end--;
      continue;
    }
    while (piece > 0 && t->first[piece - 1] >= end) piece--;  // pieces that begin in front of the end
    int piece_before = piece;
    while (piece_before > 0 && t->first[piece_before - 1] >= first) piece_before--;

    const float *last = out.x + (long)first * H, *scales = out.scales + first;
    normalize_again(n, H, last, norm_of_output(m, p), scales, x.y);
    through_head(&x, first, n, out.outputs);
    memset(x.of_x, 0, sizeof(float) * n * H);
    through_normalize(n, H, last, norm_of_output(m, p), scales, x.of_y, x.of_x,
                      norm_of_output(m, x.gradients));
    for (int l = layers - 1; l >= 0; l--) {
      const layer of = layer_of(m, p, l), gradients = layer_of(m, x.gradients, l);
      const memory k = rows_from(m, &x.w, all_rows[l], first);
      float *of_rows = of_qkv[l] + first * 3 * A;
      times(n, I, H, x.of_x, turned[l].down, x.of_active, 0);
      through_activate(n, I, k.gate_up, x.of_active, x.of_gate_up, x.active);
      add_outer(n, I, H, x.active, x.of_x, gradients.down);
      normalize_again(n, H, k.middle, of.norm2, k.scales2, x.y);
      add_outer(n, H, 2 * I, x.y, x.of_gate_up, gradients.gate_up);
      times(n, H, 2 * I, x.of_gate_up, turned[l].gate_up, x.of_y, 0);
      through_normalize(n, H, k.middle, of.norm2, k.scales2, x.of_y, x.of_x, gradients.norm2);

      add_outer(n, (int)A, H, k.attended, x.of_x, gradients.out);
      times(n, (int)A, H, x.of_x, turned[l].out, x.of_attended, 0);
      for (int q = piece_before; q < piece; q++) {
        const int at = t->first[q] - first, stop = t->first[q + 1] < end ? t->first[q + 1] : end;
        const memory own = rows_from(m, &x.w, k, at);
        through_attention(&x, t->first[q], stop - t->first[q], &own, x.of_attended + at * A,
                          all_rows[l].qkv, of_qkv[l]);
      }
      for (int i = 0; i < n; i++) rotate(m, x.table, t->place[first + i], 1, of_rows + i * 3 * A);
      normalize_again(n, H, k.x, of.norm1, k.scales1, x.y);
      add_outer(n, H, (int)(3 * A), x.y, of_rows, gradients.qkv);
      times(n, H, (int)(3 * A), of_rows, turned[l].qkv, x.of_y, 0);
      through_normalize(n, H, k.x, of.norm1, k.scales1, x.of_y, x.of_x, gradients.norm1);
    }
    for (int i = 0; i < n; i++) {
      float *to = x.gradients + (long)t->token[first + i] * H;
      for (int j = 0; j < H; j++) to[j] += x.of_x[(long)i * H + j];
    }
    end = first;
  }
}

int llama_backward(const struct llama_backward *f) {
  const llama *m = f->model;
  const long size = scratch_of_backward(m, f->completions, f->O);
  return for_each(f->S, f->threads, size, backward_seed, f);
}

// ---- Sampling ------------------------------------------------------------------------------

struct llama_sample {
  int S, B, P, T, threads;
  int end, greedy;                // end: the token behind which nothing follows
  const llama *model;
  const int64_t *prompts;         // [S, B, P], padded on the left
  const int64_t *prompt_lengths;  // [S, B], at least 1
  const float *uniforms;          // [S, B, T], in [0, 1)
  const float *temperatures;      // [S]
  int64_t *tokens;                // [S, B, T], 0 behind the end; likewise:
  float *logprobs, *entropies;    // [S, B, T]
  int64_t *lengths;               // [S, B]
  unsigned char *ended;           // [S, B], 0 where the completion was cut off
};

// Completions with equal tokens so far have one history, which has a slot: the keys [A, L], turned, and
// values [L, A] of each layer.
typedef struct {
  const llama *m;
  const float *p, *table, *head;
  widths w;
  float *slots;
  int *slot, *token, *place;  // [B], of each history: what it reads next, and where
  float *x, *middle, *y, *scales, *qkv, *attended, *gate_up, *active, *weights;  // of a block
  float *outputs;             // [B, V], of each history
} sampler;

INLINE long size_of_slot(const widths *w) { return 2 * floats_of(w->A * w->L); }

INLINE float *keys_in(const sampler *x, int slot, int layer) {
  return x->slots + ((long)slot * x->m->layers + layer) * size_of_slot(&x->w);
}

INLINE float *values_in(const sampler *x, int slot, int layer) {
  return keys_in(x, slot, layer) + floats_of(x->w.A * x->w.L);
}

// A history that parts from another has the same past.
static void copy_slot(const sampler *x, int from, int to, int places) {
  const long A = x->w.A, L = x->w.L;
  for (int l = 0; l < x->m->layers; l++) {
    const float *keys = keys_in(x, from, l);
    float *copy = keys_in(x, to, l);
    for (long a = 0; a < A; a++) memcpy(copy + a * L, keys + a * L, sizeof(float) * places);
    memcpy(values_in(x, to, l), values_in(x, from, l), sizeof(float) * places * A);
  }
}

// Histories [first, first + n), a block at most, read their tokens; with `asked` their outputs are logits.
static void read_tokens(const sampler *x, int first, int n, int asked) {
  const llama *m = x->m;
  const int H = m->H, D = m->D, heads = m->heads;
  const long A = x->w.A, L = x->w.L;
  for (int i = 0; i < n; i++)
    memcpy(x->x + (long)i * H, x->p + (long)x->token[first + i] * H, sizeof(float) * H);
  for (int l = 0; l < m->layers; l++) {
    const layer of = layer_of(m, x->p, l);
    before_attention(m, &of, x->table, n, x->place + first, x->x, x->scales, x->y, x->qkv);
    for (int i = 0; i < n; i++) {
      const int place = x->place[first + i], slot = x->slot[first + i];
      const float *qkv = x->qkv + i * 3 * A;
      float *keys = keys_in(x, slot, l), *values = values_in(x, slot, l);
      for (long a = 0; a < A; a++) keys[a * L + place] = qkv[A + a];
      memcpy(values + place * A, qkv + 2 * A, sizeof(float) * A);
      for (int h = 0; h < heads; h++)
        attend(m, 1, place, qkv + h * D, keys + h * D * L, L, values + h * D, A, x->weights, L,
               x->attended + i * A + h * D, A);
    }
    after_attention(m, &of, n, x->x, x->attended, x->middle, x->scales, x->y, x->gate_up, x->active,
                    x->x);
  }
  if (!asked) return;
  normalize(n, H, m->eps, x->x, norm_of_output(m, x->p), x->scales, x->y);
  times(n, m->V, H, x->y, x->head, x->outputs + (long)first * m->V, 0);
}

static void read_all(const sampler *x, int histories, int asked) {
  for (int i = 0; i < histories; i += BLOCK)
    read_tokens(x, i, histories - i < BLOCK ? histories - i : BLOCK, asked);
}

// The first token whose cumulative probability exceeds u: no token of probability 0.
static int draw(int V, const float *cumulative, float u) {
  const float limit = u * cumulative[V - 1];
  int token = 0;
  while (token < V - 1 && !(cumulative[token] > limit)) token++;
  return token;
}

static int likeliest(int V, const float *logp) {
  int best = 0;
  for (int i = 1; i < V; i++) best = logp[i] > logp[best] ? i : best;
  return best;
}

static long scratch_of_sample(const struct llama_sample *g) {
  const llama *m = g->model;
  const widths w = widths_of(m, &(completions){.P = g->P, .T = g->T});
  const long H = m->H, V = m->V, B = g->B, rows = BLOCK;
  long size = floats_of((g->P + g->T) * 2L * m->half) + B * m->layers * size_of_slot(&w);
  if (m->tied) size += floats_of(H * V);
  size += 10 * floats_of(B) + 2 * floats_of(B * V) + 3 * floats_of(rows * H) + floats_of(rows);
  return size + floats_of(rows * 3 * w.A) + floats_of(rows * w.A) + floats_of(rows * 2 * m->I) +
         floats_of(rows * m->I) + floats_of(w.L);
}

// Reads the prompts of a seed, of equal ones the first. of [B] gets the history of each completion.
// Returns how many there are.
static int read_prompts(const struct llama_sample *g, int s, const sampler *x, int *of) {
  const long first = (long)s * g->B;
  const int64_t *lengths = g->prompt_lengths + first;
  int count = 0, first_row[g->B + 1];
  // The longest come first: those that are still read are then next to each other.
  for (int length = g->P; length > 0; length--)
    for (int b = 0, same = count; b < g->B; b++) {
      if (lengths[b] != length) continue;
      const int64_t *prompt = g->prompts + (first + b + 1) * g->P - length;
      int i = same;
      while (i < count && memcmp(prompt, g->prompts + (first + first_row[i] + 1) * g->P - length,
                                 sizeof(int64_t) * length))
        i++;
      if (i == count) first_row[count++] = b;
      of[b] = i;
    }
  for (int i = 0; i < count; i++) x->slot[i] = i;
  for (int j = 0, n = count; n > 0; j++) {
    for (int i = 0; i < n; i++) {
      const int b = first_row[i];
      x->token[i] = (int)g->prompts[(first + b + 1) * g->P - lengths[b] + j];
      x->place[i] = j;
    }
    const int ends = lengths[first_row[n - 1]] == j + 1;
    read_all(x, n, ends);  // outputs of those that go on are computed again
    while (n > 0 && lengths[first_row[n - 1]] == j + 1) n--;
  }
  return count;
}

static void sample_seed(const void *given, int s, float *scratch) {
  const struct llama_sample *g = given;
  const llama *m = g->model;
  const int H = m->H, V = m->V, B = g->B, P = g->P, T = g->T;
  sampler x = {.m = m, .p = m->parameters + s * m->size};
  x.w = widths_of(m, &(completions){.P = P, .T = T});
  float *table = take_floats(&scratch, (P + T) * 2L * m->half);
  rotations(m, P + T, table);
  x.table = table;
  x.head = head_of(m, x.p);
  if (m->tied) {
    float *turned = take_floats(&scratch, (long)H * V);
    turn(V, H, x.head, H, turned, V);
    x.head = turned;
  }
  x.slots = scratch;
  scratch += (long)B * m->layers * size_of_slot(&x.w);
  int *slot, *token, *parent, *sibling;  // of the histories that follow
  int *child, *free_slots, *of;  // of a history the last that follows; of a completion its history, or -1
  int **arrays[] = {&x.slot, &x.token, &x.place, &slot, &token, &parent, &sibling, &child, &free_slots, &of};
  for (int i = 0; i < 10; i++) *arrays[i] = take_ints(&scratch, B);
  x.outputs = take_floats(&scratch, (long)B * V);
  float *cumulative = take_floats(&scratch, (long)B * V);
  float **wide[] = {&x.x, &x.middle, &x.y};
  for (int i = 0; i < 3; i++) *wide[i] = take_floats(&scratch, BLOCK * (long)H);
  x.scales = take_floats(&scratch, BLOCK);
  x.qkv = take_floats(&scratch, BLOCK * 3 * x.w.A);
  x.attended = take_floats(&scratch, BLOCK * x.w.A);
  x.gate_up = take_floats(&scratch, BLOCK * 2L * m->I);
  x.active = take_floats(&scratch, BLOCK * (long)m->I);
  x.weights = take_floats(&scratch, x.w.L);

  const long first = (long)s * B;
  for (int b = 0; b < B; b++) g->lengths[first + b] = T, g->ended[first + b] = 0;
  if (!T) return;
  memset(g->tokens + first * T, 0, sizeof(int64_t) * B * T);
  memset(g->logprobs + first * T, 0, sizeof(float) * B * T);
  memset(g->entropies + first * T, 0, sizeof(float) * B * T);
  int n = read_prompts(g, s, &x, of), unused = 0;
  for (int i = n; i < B; i++) free_slots[unused++] = i;
  for (int t = 0; t < T; t++) {
    for (int i = 0; i < n; i++) {
      float *logp = x.outputs + (long)i * V, *sums = cumulative + (long)i * V;
      log_softmax(V, g->temperatures[s], logp);
      exp_of_all(V, logp, sums);
      for (int v = 1; v < V; v++) sums[v] += sums[v - 1];
      child[i] = -1;
    }
    int next = 0;  // histories that follow
    for (int b = 0; b < B; b++) {
      const int h = of[b];
      if (h < 0) continue;
      const long at = (first + b) * T + t;
      const float *logp = x.outputs + (long)h * V;
      const int v = g->greedy ? likeliest(V, logp)
                              : draw(V, cumulative + (long)h * V, g->uniforms[at]);
      g->tokens[at] = v;
      g->logprobs[at] = logp[v];
      g->entropies[at] = entropy_of(V, logp);
      if (v == g->end) {
        g->lengths[first + b] = t + 1;
        g->ended[first + b] = 1;
        of[b] = -1;
        continue;
      }
      int i = child[h];
      while (i >= 0 && token[i] != v) i = sibling[i];
      if (i < 0) {
        i = next++;
        token[i] = v;
        parent[i] = h;
        sibling[i] = child[h];
        child[h] = i;
      }
      of[b] = i;
    }
    if (!next || t + 1 == T) return;
    for (int i = 0; i < n; i++)
      if (child[i] < 0) free_slots[unused++] = x.slot[i];
    for (int i = 0; i < next; i++) {  // the first that follows takes over the slot, others copy it
      const int h = parent[i], is_first = child[h] >= 0;
      slot[i] = is_first ? x.slot[h] : free_slots[--unused];
      if (!is_first) copy_slot(&x, x.slot[h], slot[i], x.place[h] + 1);
      child[h] = -1;
    }
    for (int i = 0; i < next; i++) sibling[i] = x.place[parent[i]] + 1;  // its place
    n = next;
    memcpy(x.slot, slot, sizeof(int) * n);
    memcpy(x.token, token, sizeof(int) * n);
    memcpy(x.place, sibling, sizeof(int) * n);
    read_all(&x, n, 1);
  }
}

int llama_sample(const struct llama_sample *g) {
  const llama *m = g->model;
  for (long row = 0; row < (long)g->S * g->B; row++)
    if (!are_tokens(m, g->prompts + row * g->P, g->prompt_lengths[row], 1, g->P, 1)) return 2;
  return for_each(g->S, g->threads, scratch_of_sample(g), sample_seed, g);
}
