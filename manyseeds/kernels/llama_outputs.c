// Log-probabilities of completions or scalars along them, and the gradients of the parameters.
//
// No padding is computed, and completions share equal histories: the tokens of a seed are a tree,
// each node a token after its parent, in which a completion is the path from a root to a leaf.
// Nodes are numbered in the order of the completions that need them first.
//
// In the last layer, nodes without an output are only keys and values; the others have rows.
//
// N nodes of a seed's tree at most; O outputs of a completion; L keys that a query has at most,
// padded.
#include <math.h>

#include "llama.h"

// ---- The tree of a seed's completions --------------------------------------------------------

typedef struct {
  int S, B, P, T;
  long N;                  // nodes that a seed has at most: the inputs of all its completions
  const int64_t *prompts;  // [S, B, P], padded on the left
  const int64_t *prompt_lengths;  // [S, B], at least 1
  const int64_t *tokens;          // [S, B, T], padded on the right
  const int64_t *lengths;         // [S, B]
} completions;

// A piece is a chain of nodes, each the parent of the next, within a block.
typedef struct {
  int count, pieces;
  int *token, *parent, *position;  // [N]; parent -1: none
  int *read;                       // [N], whether a completion has an output here, or before it in
                                   // its piece
  int *row;                        // [N + 1], of the nodes that are read: how many come before
  int *first;                      // [pieces + 1], the first node of each piece
  int *leaf;                       // [B], -1: nothing is computed for this completion
  int *child, *sibling;            // [N], used only while the tree grows
} tree;

// Outputs of a completion of some tokens: the scalar model has one after each, and before the
// first.
INLINE long outputs_of(const llama *m, long tokens) { return tokens + m->scalar; }

static tree tree_in(arena *a, const completions *c) {
  tree t = {0};
  int **of_nodes[] = {&t.token, &t.parent, &t.position, &t.read, &t.child, &t.sibling};
  for (int i = 0; i < 6; i++) *of_nodes[i] = ints_in(a, c->N);
  t.row = ints_in(a, c->N + 1);
  t.first = ints_in(a, c->B + c->N / BLOCK + 2);
  t.leaf = ints_in(a, c->B);
  return t;
}

static void grow(const llama *m, const completions *c, int s, tree *t) {
  int root = -1;  // the last node without a parent
  for (int b = 0; b < c->B; b++) {
    const long row = (long)s * c->B + b, prompt = c->prompt_lengths[row], n = c->lengths[row];
    const int64_t *before = c->prompts + (row + 1) * c->P - prompt, *after = c->tokens + row * c->T;
    const long outputs = outputs_of(m, n), inputs = outputs ? prompt + outputs - 1 : 0;
    int node = -1, is_new = 0;
    for (int j = 0; j < inputs; j++) {
      const int token = (int)(j < prompt ? before[j] : after[j - prompt]);
      int *children = node < 0 ? &root : t->child + node, next = is_new ? -1 : *children;
      while (next >= 0 && t->token[next] != token) next = t->sibling[next];
      if (next < 0) {
        next = t->count++;
        t->token[next] = token;
        t->parent[next] = node;
        t->position[next] = j;
        t->read[next] = 0;
        t->child[next] = -1;
        t->sibling[next] = *children;
        *children = next;
        if (!is_new || next % BLOCK == 0) t->first[t->pieces++] = next;
        is_new = 1;
      }
      node = next;
    }
    t->leaf[b] = node;
    for (long o = 0; o < outputs; o++, node = t->parent[node]) t->read[node] = 1;
  }
  t->first[t->pieces] = t->count;
  t->row[0] = 0;
  for (int q = 0; q < t->pieces; q++)
    for (int i = t->first[q]; i < t->first[q + 1]; i++) {
      if (i > t->first[q]) t->read[i] |= t->read[i - 1];  // the nodes of a piece have rows in a row
      t->row[i + 1] = t->row[i] + t->read[i];
    }
}

// The row of a node from the attention of a layer on; of one that has none, the next row.
INLINE int row_of(const llama *m, const tree *t, int l, int node) {
  return l < m->layers - 1 ? node : t->row[node];
}

// The path to the end of a piece of M nodes, the first of them `first`. Returns its length.
static int path_to(const tree *t, int first, int M, int *path) {
  const int before = t->position[first];
  for (int i = before - 1, node = t->parent[first]; i >= 0; i--, node = t->parent[node])
    path[i] = node;
  for (int i = 0; i < M; i++) path[before + i] = first + i;
  return before + M;
}

// Copies two parts of the rows [N, 3 A] of qkv along a path: the A columns from `turned` to
// as_columns [A, L], whose rows are ld apart, and those from `plain` to as_rows [L, A].
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

// ---- What layers keep ------------------------------------------------------------------------

// Widths of rows.
typedef struct {
  long H, A, I, L, outputs;
  int heads;
} widths;

static widths widths_of(const llama *m, const completions *c) {
  const long L = floats_of(c->P + c->T);
  return (widths){m->H, width_of_attention(m), m->I, L, m->scalar ? 1 : m->V, m->heads};
}

// What layers compute, a row per node; from the attention of the last layer on, one per node that
// is read. Without gradients only qkv and outputs have rows for all nodes of all layers; layers and
// blocks share the others.
typedef struct {
  widths w;
  long N;
  int shared;
  float *x, *scales1;   // [layers + 1, N, H] and [layers + 1, N]; the last after all layers
  float *qkv, *of_qkv;  // [layers, N, 3 A]; of_qkv: gradients
  float *weights;       // [layers, N, heads, L], of keys
  float *attended;      // [layers, N, A]
  float *middle, *scales2, *gate_up;  // [layers, N, H], [layers, N], [layers, N, 2 I]
  float *outputs;                     // [N, V] log-probabilities, or [N] scalars
} memory;

static memory memory_in(arena *a, const llama *m, const completions *c, int shared) {
  const widths w = widths_of(m, c);
  memory k = {.w = w, .N = c->N, .shared = shared};
  const long rows = shared ? BLOCK : m->layers * c->N, all = m->layers * c->N;
  const long with_last = shared ? BLOCK : rows + c->N;
  k.x = floats_in(a, with_last * w.H);
  k.scales1 = floats_in(a, with_last);
  k.qkv = floats_in(a, all * 3 * w.A);
  if (!shared) k.of_qkv = floats_in(a, all * 3 * w.A);
  k.weights = floats_in(a, rows * w.heads * w.L);
  k.attended = floats_in(a, rows * w.A);
  k.middle = floats_in(a, rows * w.H);
  k.scales2 = floats_in(a, rows);
  k.gate_up = floats_in(a, rows * 2 * w.I);
  k.outputs = floats_in(a, c->N * w.outputs);
  return k;
}

// The rows of a layer from one on.
static memory rows_from(const memory *all, int l, int from) {
  memory k = *all;
  const long row = k.shared ? 0 : l * k.N + from, of_all = l * k.N + from;
  k.x += row * k.w.H;
  k.scales1 += row;
  k.qkv += of_all * 3 * k.w.A;
  if (k.of_qkv) k.of_qkv += of_all * 3 * k.w.A;
  k.weights += row * k.w.heads * k.w.L;
  k.attended += row * k.w.A;
  k.middle += row * k.w.H;
  k.scales2 += row;
  k.gate_up += row * 2 * k.w.I;
  return k;
}

// ---- Forward -------------------------------------------------------------------------------

struct llama_forward {
  int S, B, O, threads;  // O: outputs of a completion, T or for scalars T + 1
  long kept_size;        // 0: nothing is kept
  const llama *model;
  const completions *completions;
  const float *temperatures;  // [S]
  float *memory;              // [S, kept_size]; null
  float *outputs;    // [S, B, O]: log-probabilities of tokens, or scalars; 0 after the last
  float *entropies;  // [S, B, O]; null: none
};

// What a seed's outputs are computed with.
typedef struct {
  tree t;
  memory k;
  float *table;          // of rotations
  float *turned;         // the embedding as the head [H, V]
  int *path;             // [L]
  float *keys, *values;  // of a path: [A, L] and [L, A]
  float *y, *active;     // of a block: [BLOCK, H] and [BLOCK, I]
} forward;

static forward forward_in(arena *a, const struct llama_forward *f, float *kept) {
  const llama *m = f->model;
  const completions *c = f->completions;
  const widths w = widths_of(m, c);
  forward x;
  x.t = tree_in(a, c);
  x.table = floats_in(a, (c->P + c->T) * 2L * m->half);
  x.turned = m->tied ? floats_in(a, (long)m->H * m->V) : 0;
  x.path = ints_in(a, w.L);
  x.keys = floats_in(a, w.A * w.L);
  x.values = floats_in(a, w.A * w.L);
  x.y = floats_in(a, BLOCK * w.H);
  x.active = floats_in(a, BLOCK * w.I);
  arena of_kept = {kept, 0};
  const int keeps = f->kept_size > 0;
  x.k = memory_in(keeps ? &of_kept : a, m, c, !keeps);
  return x;
}

// The outputs of the nodes that are read, of n from `first`, a block.
static void compute_outputs(const llama *m, const float *p, float temperature, const forward *f,
                            int first, int n) {
  const int H = m->H, V = m->V, from = f->t.row[first], rows = f->t.row[first + n] - from;
  const memory k = rows_from(&f->k, m->layers, from);
  normalize(rows, H, m->eps, k.x, norm_of_output(m, p), k.scales1, f->y);
  const float *head = m->tied ? f->turned : head_of(m, p);
  float *to = f->k.outputs + from * f->k.w.outputs;
  if (m->scalar) {
    for (int r = 0; r < rows; r++) to[r] = dot_of_row(H, f->y + (long)r * H, head);
  } else {
    matmul(rows, V, H, f->y, head, to, 0);
    for (int r = 0; r < rows; r++) logprobs_of(V, temperature, to + (long)r * V);
  }
}

static void forward_seed(const void *given, int s, float *scratch) {
  const struct llama_forward *g = given;
  const llama *m = g->model;
  const completions *c = g->completions;
  const float *p = m->parameters + s * m->size;
  const int H = m->H, V = m->V, D = m->D;
  arena a = {scratch, 0};
  forward f = forward_in(&a, g, g->memory ? g->memory + s * g->kept_size : 0);
  const tree *t = &f.t;
  const long A = f.k.w.A, L = f.k.w.L;
  grow(m, c, s, &f.t);
  rotations(m, c->P + c->T, f.table);
  if (m->tied) turn(V, H, head_of(m, p), H, f.turned, V);

  for (int first = 0, piece = 0; first < t->count; first += BLOCK) {
    const int n = t->count - first < BLOCK ? t->count - first : BLOCK;
    float *x = rows_from(&f.k, 0, first).x;
    for (int i = 0; i < n; i++)
      memcpy(x + (long)i * H, p + (long)t->token[first + i] * H, sizeof(float) * H);
    int end = piece;  // of the pieces of this block
    while (end < t->pieces && t->first[end] < first + n) end++;
    for (int l = 0; l < m->layers; l++) {
      const layer of = layer_of(m, p, l);
      const memory k = rows_from(&f.k, l, first);
      before_attention(m, &of, f.table, n, t->position + first, k.x, k.scales1, f.y, k.qkv);
      const int from = row_of(m, t, l, first), rows = row_of(m, t, l, first + n) - from;
      const memory to = rows_from(&f.k, l, from);
      for (int q = piece; q < end; q++) {
        const int row = row_of(m, t, l, t->first[q]), next = t->first[q + 1];
        const int M = row_of(m, t, l, next) - row, begin = next - M;
        if (!M) continue;
        const int keys = path_to(t, begin, M, f.path);
        const long at = row - from;
        const float *queries = rows_from(&f.k, l, begin).qkv;
        gather(A, keys, f.path, rows_from(&f.k, l, 0).qkv, A, f.keys, L, 2 * A, f.values);
        float *weights = to.weights + at * m->heads * L, *attended = to.attended + at * A;
        for (int h = 0; h < m->heads; h++)
          attend(m, M, keys - M, queries + h * D, f.keys + h * D * L, L, f.values + h * D, A,
                 weights + h * L, m->heads * L, attended + h * D, A);
        const float *of_nodes = k.x + (long)(begin - first) * H;
        memcpy(to.middle + at * H, of_nodes, sizeof(float) * M * H);
      }
      after_attention(m, &of, rows, to.attended, to.middle, to.scales2, f.y, to.gate_up, f.active,
                      rows_from(&f.k, l + 1, from).x);
    }
    compute_outputs(m, p, g->temperatures[s], &f, first, n);
    piece = end;
  }

  for (int b = 0; b < c->B; b++) {
    const long at = (long)s * c->B + b, outputs = outputs_of(m, c->lengths[at]);
    for (long o = outputs; o < g->O; o++) {
      g->outputs[at * g->O + o] = 0;
      if (g->entropies) g->entropies[at * g->O + o] = 0;
    }
    int node = t->leaf[b];
    for (long o = outputs - 1; o >= 0; o--, node = t->parent[node]) {
      const float *of = f.k.outputs + t->row[node] * f.k.w.outputs;
      g->outputs[at * g->O + o] = m->scalar ? *of : of[c->tokens[at * c->T + o]];
      if (g->entropies) g->entropies[at * g->O + o] = entropy_of(V, of);
    }
  }
}

static int are_completions(const llama *m, const completions *c) {
  for (long row = 0; row < (long)c->S * c->B; row++)
    if (!are_tokens(m, c->prompts + row * c->P, c->prompt_lengths[row], 1, c->P, 1) ||
        !are_tokens(m, c->tokens + row * c->T, c->lengths[row], 0, c->T, 0))
      return 0;
  return 1;
}

int llama_forward(const struct llama_forward *g) {
  if (!are_completions(g->model, g->completions)) return 2;
  arena a = {0};
  forward_in(&a, g, 0);
  return for_each(g->S, g->threads, a.used, forward_seed, g);
}

struct llama_sizes {
  const llama *model;
  const completions *completions;
  int64_t *kept_size;  // [1], floats that llama_forward keeps for llama_backward, of a seed
};

int llama_sizes(const struct llama_sizes *x) {
  arena a = {0};
  memory_in(&a, x->model, x->completions, 0);
  x->kept_size[0] = a.used;
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

// What a seed's gradients are computed with.
typedef struct {
  const struct llama_backward *given;
  const llama *m;
  const float *p, *of_outputs, *of_entropies;
  float *gradients, temperature;
  tree t;
  memory k;
  int *needed;        // [N], whether a node gets a gradient
  int *pair, *next;   // of each node [N] its first output b O + o with a gradient; of each the next
  float *table;       // of rotations
  float *turned;      // all matrices, turned
  const float *head;  // [V, H] or [H]
  int *path;
  float *keys, *values, *of_keys, *of_values;  // of a path
  float *of_weights;                           // of a piece, [BLOCK, L]
  float *of_x, *of_y, *y, *of_active, *active, *of_gate_up, *of_attended, *of_logits;  // of a block
} backward;

static backward backward_in(arena *a, const struct llama_backward *f, float *kept) {
  const llama *m = f->model;
  const completions *c = f->completions;
  backward x = {.given = f, .m = m};
  arena of_kept = {kept, 0};
  x.k = memory_in(&of_kept, m, c, 0);
  const widths w = x.k.w;
  x.t = tree_in(a, c);
  x.needed = ints_in(a, c->N);
  x.pair = ints_in(a, c->N);
  x.next = ints_in(a, (long)c->B * f->O);
  x.table = floats_in(a, (c->P + c->T) * 2L * m->half);
  x.turned = floats_in(a, m->size);
  x.path = ints_in(a, w.L);
  float **of_paths[] = {&x.keys, &x.values, &x.of_keys, &x.of_values};
  for (int i = 0; i < 4; i++) *of_paths[i] = floats_in(a, w.A * w.L);
  x.of_weights = floats_in(a, BLOCK * w.L);
  float **of_blocks[] = {&x.of_x,   &x.of_y,       &x.y,           &x.of_active,
                         &x.active, &x.of_gate_up, &x.of_attended, &x.of_logits};
  const long sizes[] = {w.H, w.H, w.H, w.I, w.I, 2 * w.I, w.A, w.outputs};
  for (int i = 0; i < 8; i++) *of_blocks[i] = floats_in(a, BLOCK * sizes[i]);
  return x;
}

// Turns all matrices, each in its place among the parameters; an untied head to [V, H], in that of
// the embedding.
static void turn_all(backward *x) {
  const llama *m = x->m;
  const int H = m->H, I = m->I, A = (int)width_of_attention(m);
  for (int l = 0; l < m->layers; l++) {
    const layer of = layer_of(m, x->p, l), to = layer_of(m, x->turned, l);
    turn(H, 3 * A, of.qkv, 3 * A, to.qkv, H);
    turn(A, H, of.out, H, to.out, A);
    turn(H, 2 * I, of.gate_up, 2 * I, to.gate_up, H);
    turn(I, H, of.down, H, to.down, I);
  }
  x->head = head_of(m, x->p);
  if (!m->tied && !m->scalar) {
    turn(H, m->V, x->head, m->V, x->turned, H);
    x->head = x->turned;
  }
}

// The gradient of the logits [V] of a node from its log-probabilities. An output with gradient g,
// which is that of token a, contributes g (1 - p) at a and -g p elsewhere.
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
    if (of_entropy != 0)     // dH / dz = -p (log p + H)
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

// Backward pass of the head for nodes [first, first + n): sets of_y, the gradient of its inputs y,
// a row for each node that is read.
static void through_head(backward *x, int first, int n) {
  const llama *m = x->m;
  const int H = m->H, V = m->V, *row = x->t.row;
  float *of_head = head_of(m, x->gradients);
  memset(x->of_y, 0, sizeof(float) * (row[first + n] - row[first]) * H);
  for (int i = 0; i < n;) {  // runs of nodes whose outputs have gradients
    int count = 0;
    while (i + count < n && x->pair[first + i + count] >= 0) count++;
    const long at = row[first + i] - row[first];
    float *of_y = x->of_y + at * H;
    const float *y = x->y + at * H;
    if (m->scalar) {
      for (int r = 0; r < count; r++) {
        float g = 0;
        for (int k = x->pair[first + i + r]; k >= 0; k = x->next[k]) g += x->of_outputs[k];
        for (int j = 0; j < H; j++) of_y[(long)r * H + j] = g * x->head[j];
        for (int j = 0; j < H; j++) of_head[j] += g * y[(long)r * H + j];
      }
    } else if (count) {
      for (int r = 0; r < count; r++) {
        const int node = first + i + r;
        const float *logp = x->k.outputs + (long)row[node] * V;
        through_log_softmax(x, node, logp, x->of_logits + (long)r * V);
      }
      matmul(count, H, V, x->of_logits, x->head, of_y, 0);
      if (m->tied) add_outer(count, V, H, x->of_logits, y, of_head);
      else add_outer(count, H, V, y, x->of_logits, of_head);
    }
    i += count ? count : 1;
  }
}

// The gradients of queries, keys and values of M nodes of a piece of layer l, and of the keys and
// values before them, from their weights and the gradient of what they attended [M, A].
static void through_attention(backward *x, int l, int first, int M, const float *all_weights,
                              const float *of_attended) {
  const int D = x->m->D, heads = x->m->heads, keys = path_to(&x->t, first, M, x->path);
  const long A = x->k.w.A, L = x->k.w.L, ldw = heads * L;
  const float scale = 1 / sqrtf((float)D);
  const memory k = rows_from(&x->k, l, first), all = rows_from(&x->k, l, 0);
  gather(A, keys, x->path, all.qkv, 2 * A, x->values, L, A, x->keys);
  for (int h = 0; h < heads; h++) {
    const float *weights = all_weights + h * L, *of_y = of_attended + h * D;
    const float *query = k.qkv + h * D, *key = x->keys + h * D;
    float *of_scores = x->of_weights, *of_query = k.of_qkv + h * D;
    product(&(matrices){M, keys, D, of_y, A, 1, x->values + h * D * L, L, of_scores, L, 0});
    for (int r = 0; r < M; r++) {
      const int n = keys - M + r + 1;  // keys of this query
      float *row = of_scores + r * L;
      const float along = dot_of_row(n, row, weights + r * ldw);
      for (int i = 0; i < n; i += WIDTH) {
        const vec weight = load_up_to(weights + r * ldw + i, n - i);
        store_up_to(row + i, weight * (load_up_to(row + i, n - i) - along) * scale, n - i);
      }
      memset(row + n, 0, sizeof(float) * (keys - n));
    }
    product(&(matrices){M, D, keys, of_scores, L, 1, key, A, of_query, 3 * A, 0});
    product(&(matrices){keys, D, M, of_scores, 1, L, query, 3 * A, x->of_keys + h * D, A, 0});
    product(&(matrices){keys, D, M, weights, 1, ldw, of_y, A, x->of_values + h * D, A, 0});
  }
  for (int i = 0; i < keys; i++) {
    float *to = all.of_qkv + x->path[i] * 3 * A;
    for (int j = 0; j < A; j++) to[A + j] += x->of_keys[i * A + j];
    for (int j = 0; j < A; j++) to[2 * A + j] += x->of_values[i * A + j];
  }
}

// Finds the outputs that have a gradient, and the nodes that get one: theirs and all before these.
static void find_needed(backward *x, const completions *c, int s) {
  const tree *t = &x->t;
  const int O = x->given->O;
  for (int i = 0; i < t->count; i++) x->pair[i] = -1, x->needed[i] = 0;
  for (int b = c->B - 1; b >= 0; b--) {
    int node = t->leaf[b];
    for (long o = outputs_of(x->m, c->lengths[(long)s * c->B + b]) - 1; o >= 0; o--) {
      const int i = (int)(b * (long)O + o);
      if (x->of_outputs[i] != 0 || (x->of_entropies && x->of_entropies[i] != 0)) {
        x->next[i] = x->pair[node];
        x->pair[node] = i;
        for (int a = node; a >= 0 && !x->needed[a]; a = t->parent[a]) x->needed[a] = 1;
      }
      node = t->parent[node];
    }
  }
}

// Gives each of n nodes from `first` a row of of_x, in place: its own, or 0 if it is not read.
static void spread(backward *x, int first, int n) {
  const size_t H = x->m->H;
  for (int i = n - 1; i >= 0; i--) {
    float *to = x->of_x + i * H;
    if (x->t.read[first + i])
      memmove(to, x->of_x + (x->t.row[first + i] - x->t.row[first]) * H, sizeof(float) * H);
    else memset(to, 0, sizeof(float) * H);
  }
}

// Backward pass of nodes [first, first + n), a run within a block: adds to the gradients of the
// parameters and of the keys and values before the run. Pieces [from, to) have nodes in it.
static void backward_run(backward *x, int first, int n, int from, int to) {
  const llama *m = x->m;
  const tree *t = &x->t;
  const int H = m->H, I = m->I, A = (int)x->k.w.A;
  const memory top = rows_from(&x->k, m->layers, t->row[first]);
  const float *gain = norm_of_output(m, x->p);
  const int read = t->row[first + n] - t->row[first];
  normalize_again(read, H, top.x, gain, top.scales1, x->y);
  through_head(x, first, n);
  memset(x->of_x, 0, sizeof(float) * read * H);
  through_normalize(read, H, top.x, gain, top.scales1, x->of_y, x->of_x,
                    norm_of_output(m, x->gradients));
  for (int l = m->layers - 1; l >= 0; l--) {
    const layer of = layer_of(m, x->p, l), turned = layer_of(m, x->turned, l);
    const layer gradients = layer_of(m, x->gradients, l);
    const int begin = row_of(m, t, l, first), rows = row_of(m, t, l, first + n) - begin;
    const memory after = rows_from(&x->k, l, begin);
    matmul(rows, I, H, x->of_x, turned.down, x->of_active, 0);
    through_activate(rows, I, after.gate_up, x->of_active, x->of_gate_up, x->active);
    add_outer(rows, I, H, x->active, x->of_x, gradients.down);
    normalize_again(rows, H, after.middle, of.norm2, after.scales2, x->y);
    add_outer(rows, H, 2 * I, x->y, x->of_gate_up, gradients.gate_up);
    matmul(rows, H, 2 * I, x->of_gate_up, turned.gate_up, x->of_y, 0);
    through_normalize(rows, H, after.middle, of.norm2, after.scales2, x->of_y, x->of_x,
                      gradients.norm2);

    add_outer(rows, A, H, after.attended, x->of_x, gradients.out);
    matmul(rows, A, H, x->of_x, turned.out, x->of_attended, 0);
    for (int q = from; q < to; q++) {
      const int next = t->first[q + 1], end = next < first + n ? next : first + n;
      const int row = row_of(m, t, l, t->first[q]), M = row_of(m, t, l, end) - row;
      if (!M) continue;
      const long at = row - begin;
      through_attention(x, l, end - M, M, after.weights + at * m->heads * x->k.w.L,
                        x->of_attended + at * A);
    }
    if (l == m->layers - 1) spread(x, first, n);
    const memory k = rows_from(&x->k, l, first);
    rotate(m, x->table, n, t->position + first, 1, k.of_qkv);
    normalize_again(n, H, k.x, of.norm1, k.scales1, x->y);
    add_outer(n, H, 3 * A, x->y, k.of_qkv, gradients.qkv);
    matmul(n, H, 3 * A, k.of_qkv, turned.qkv, x->of_y, 0);
    through_normalize(n, H, k.x, of.norm1, k.scales1, x->of_y, x->of_x, gradients.norm1);
  }
  for (int i = 0; i < n; i++) {
    float *of_embedding = x->gradients + (long)t->token[first + i] * H;
    for (int j = 0; j < H; j++) of_embedding[j] += x->of_x[(long)i * H + j];
  }
}

static void backward_seed(const void *given, int s, float *scratch) {
  const struct llama_backward *g = given;
  const llama *m = g->model;
  const completions *c = g->completions;
  arena a = {scratch, 0};
  backward x = backward_in(&a, g, g->memory + s * g->kept_size);
  x.p = m->parameters + s * m->size;
  x.of_outputs = g->of_outputs + (long)s * c->B * g->O;
  x.of_entropies = g->of_entropies ? g->of_entropies + (long)s * c->B * g->O : 0;
  x.gradients = g->gradients + s * m->size;
  x.temperature = g->temperatures[s];
  const tree *t = &x.t;
  memset(x.gradients, 0, sizeof(float) * m->size);
  grow(m, c, s, &x.t);
  find_needed(&x, c, s);
  rotations(m, c->P + c->T, x.table);
  turn_all(&x);
  for (int l = 0; l < m->layers; l++)  // keys and values get gradients from all that follow them
    memset(rows_from(&x.k, l, 0).of_qkv, 0, sizeof(float) * t->count * 3 * x.k.w.A);
  // Runs of needed nodes, the last first: a node comes after all that follow it in a completion.
  for (int end = t->count, to = t->pieces; end > 0;) {
    int first = end;
    while (first > (end - 1) / BLOCK * BLOCK && x.needed[first - 1]) first--;
    if (first < end) {
      while (t->first[to - 1] >= end) to--;
      int from = to;
      while (from > 0 && t->first[from - 1] >= first) from--;
      backward_run(&x, first, end - first, from, to);
    }
    end = first < end ? first : end - 1;
  }
}

int llama_backward(const struct llama_backward *g) {
  arena a = {0};
  backward_in(&a, g, 0);
  return for_each(g->S, g->threads, a.used, backward_seed, g);
}
