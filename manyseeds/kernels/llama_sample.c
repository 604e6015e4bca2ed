// Completions that small Llamas sample, token by token.
#include <math.h>

#include "llama.h"

struct llama_sample {
  int S, B, P, T, threads;
  int end, greedy;  // end: the token that ends a completion
  const llama *model;
  const int64_t *prompts;         // [S, B, P], padded on the left
  const int64_t *prompt_lengths;  // [S, B], at least 1
  const float *uniforms;          // [S, B, T], in [0, 1)
  const float *temperatures;      // [S]
  int64_t *tokens;                // [S, B, T], 0 after the end, as in
  float *logprobs, *entropies;    // [S, B, T]
  int64_t *lengths;               // [S, B]
  unsigned char *ended;           // [S, B], 0 where the completion was cut off
};

// What a seed's completions are sampled with. Completions with equal tokens so far have one
// history, and it has a slot: the keys [A, L], turned, and values [L, A] of each layer.
typedef struct {
  const llama *m;
  const float *p, *head;         // of the seed; head: [H, V]
  long A, L;                     // L: positions, padded
  float *table;                  // of rotations
  float *turned;                 // the embedding as the head
  float *slots;                  // [B, layers, 2, A L]
  int *slot, *token, *position;  // [B], of each history; what it reads next, and where
  int *of;                       // [B], of each completion its history; -1: it has ended
  int *next_slot, *next_token, *parent, *sibling;  // [B], of the histories that follow
  int *child;                                      // [B], of each history the last that follows it
  int *unused;                                     // [B], slots
  float *outputs, *cumulative;  // [B, V], of each history: log-probabilities, and summed up
  float *x, *middle, *y, *scales, *qkv, *attended, *gate_up, *active, *weights;  // of a block
} sampler;

static sampler sampler_in(arena *a, const struct llama_sample *g) {
  const llama *m = g->model;
  const long H = m->H, V = m->V, I = m->I, B = g->B, rows = BLOCK;
  sampler x = {.m = m, .A = width_of_attention(m), .L = floats_of(g->P + g->T)};
  x.table = floats_in(a, (g->P + g->T) * 2L * m->half);
  x.turned = m->tied ? floats_in(a, H * V) : 0;
  x.slots = floats_in(a, B * m->layers * 2 * x.A * x.L);
  int **of_histories[] = {&x.slot,       &x.token,  &x.position, &x.of,    &x.next_slot,
                          &x.next_token, &x.parent, &x.sibling,  &x.child, &x.unused};
  for (int i = 0; i < 10; i++) *of_histories[i] = ints_in(a, B);
  x.outputs = floats_in(a, B * V);
  x.cumulative = floats_in(a, B * V);
  x.x = floats_in(a, rows * H);
  x.middle = floats_in(a, rows * H);
  x.y = floats_in(a, rows * H);
  x.scales = floats_in(a, rows);
  x.qkv = floats_in(a, rows * 3 * x.A);
  x.attended = floats_in(a, rows * x.A);
  x.gate_up = floats_in(a, rows * 2 * I);
  x.active = floats_in(a, rows * I);
  x.weights = floats_in(a, x.L);
  return x;
}

INLINE float *keys_in(const sampler *x, int slot, int l) {
  return x->slots + ((long)slot * x->m->layers + l) * 2 * x->A * x->L;
}

INLINE float *values_in(const sampler *x, int slot, int l) {
  return keys_in(x, slot, l) + x->A * x->L;
}

// Copies the keys and values of the first positions to the slot of a new history.
static void copy_slot(const sampler *x, int from, int to, int positions) {
  const long A = x->A, L = x->L;
  for (int l = 0; l < x->m->layers; l++) {
    const float *keys = keys_in(x, from, l);
    float *copy = keys_in(x, to, l);
    for (long a = 0; a < A; a++) memcpy(copy + a * L, keys + a * L, sizeof(float) * positions);
    memcpy(values_in(x, to, l), values_in(x, from, l), sizeof(float) * positions * A);
  }
}

// Histories [first, first + n), a block at most, read their tokens. with_outputs: and get their
// logits.
static void read_tokens(const sampler *x, int first, int n, int with_outputs) {
  const llama *m = x->m;
  const int H = m->H, D = m->D, heads = m->heads;
  const long A = x->A, L = x->L;
  for (int i = 0; i < n; i++)
    memcpy(x->x + (long)i * H, x->p + (long)x->token[first + i] * H, sizeof(float) * H);
  for (int l = 0; l < m->layers; l++) {
    const layer of = layer_of(m, x->p, l);
    before_attention(m, &of, x->table, n, x->position + first, x->x, x->scales, x->y, x->qkv);
    for (int i = 0; i < n; i++) {
      const int position = x->position[first + i], slot = x->slot[first + i];
      const float *qkv = x->qkv + i * 3 * A;
      float *keys = keys_in(x, slot, l), *values = values_in(x, slot, l);
      for (long a = 0; a < A; a++) keys[a * L + position] = qkv[A + a];
      memcpy(values + position * A, qkv + 2 * A, sizeof(float) * A);
      for (int h = 0; h < heads; h++)
        attend(m, 1, position, qkv + h * D, keys + h * D * L, L, values + h * D, A, x->weights, L,
               x->attended + i * A + h * D, A);
    }
    memcpy(x->middle, x->x, sizeof(float) * n * H);
    after_attention(m, &of, n, x->attended, x->middle, x->scales, x->y, x->gate_up, x->active,
                    x->x);
  }
  if (!with_outputs) return;
  normalize(n, H, m->eps, x->x, norm_of_output(m, x->p), x->scales, x->y);
  matmul(n, m->V, H, x->y, x->head, x->outputs + (long)first * m->V, 0);
}

static void read_all(const sampler *x, int histories, int with_outputs) {
  for (int i = 0; i < histories; i += BLOCK)
    read_tokens(x, i, histories - i < BLOCK ? histories - i : BLOCK, with_outputs);
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

// Reads the prompts of a seed, equal ones once, and sets the history of each completion. Returns
// the number of histories.
static int read_prompts(const struct llama_sample *g, int s, const sampler *x) {
  const int64_t *lengths = g->prompt_lengths + (long)s * g->B;
  const int64_t *ends = g->prompts + ((long)s * g->B + 1) * g->P;  // of row b: ends + b P
  int count = 0, *row = x->parent;  // of each history its first completion
  // The longest come first: those that are still read are always the first.
  for (int length = g->P; length > 0; length--)
    for (int b = 0, longer = count; b < g->B; b++) {
      if (lengths[b] != length) continue;
      const size_t size = sizeof(int64_t) * length;
      int i = longer;
      while (i < count &&
             memcmp(ends + (long)b * g->P - length, ends + (long)row[i] * g->P - length, size))
        i++;
      if (i == count) row[count++] = b;
      x->of[b] = i;
    }
  for (int i = 0; i < count; i++) x->slot[i] = i;
  for (int j = 0, n = count; n > 0; j++) {
    for (int i = 0; i < n; i++) {
      x->token[i] = (int)ends[(long)row[i] * g->P - lengths[row[i]] + j];
      x->position[i] = j;
    }
    // Where some end, those that go on get outputs, too, and others at their own end.
    read_all(x, n, lengths[row[n - 1]] == j + 1);
    while (n > 0 && lengths[row[n - 1]] == j + 1) n--;
  }
  return count;
}

// Replaces n histories by the `next` ones that follow them: the first successor of a history takes
// over its slot, others get a copy. Returns the number of unused slots.
static int part(const sampler *x, int n, int next, int unused) {
  for (int i = 0; i < n; i++)
    if (x->child[i] < 0) x->unused[unused++] = x->slot[i];
  for (int i = 0; i < next; i++) {
    const int h = x->parent[i], is_first = x->child[h] >= 0;
    x->next_slot[i] = is_first ? x->slot[h] : x->unused[--unused];
    if (!is_first) copy_slot(x, x->slot[h], x->next_slot[i], x->position[h] + 1);
    x->child[h] = -1;
  }
  int *next_position = x->sibling;
  for (int i = 0; i < next; i++) next_position[i] = x->position[x->parent[i]] + 1;
  memcpy(x->slot, x->next_slot, sizeof(int) * next);
  memcpy(x->token, x->next_token, sizeof(int) * next);
  memcpy(x->position, next_position, sizeof(int) * next);
  return unused;
}

// The history that follows h with a token, which may be a new one, number *next.
static int follow(const sampler *x, int h, int token, int *next) {
  int i = x->child[h];
  while (i >= 0 && x->next_token[i] != token) i = x->sibling[i];
  if (i >= 0) return i;
  i = (*next)++;
  x->next_token[i] = token;
  x->parent[i] = h;
  x->sibling[i] = x->child[h];
  x->child[h] = i;
  return i;
}

static void sample_seed(const void *given, int s, float *scratch) {
  const struct llama_sample *g = given;
  const llama *m = g->model;
  const int V = m->V, B = g->B, T = g->T;
  const long first = (long)s * B;
  for (int b = 0; b < B; b++) g->lengths[first + b] = T, g->ended[first + b] = 0;
  if (!T) return;
  memset(g->tokens + first * T, 0, sizeof(int64_t) * B * T);
  memset(g->logprobs + first * T, 0, sizeof(float) * B * T);
  memset(g->entropies + first * T, 0, sizeof(float) * B * T);
  arena a = {scratch, 0};
  sampler x = sampler_in(&a, g);
  x.p = m->parameters + s * m->size;
  x.head = m->tied ? x.turned : head_of(m, x.p);
  rotations(m, g->P + T, x.table);
  if (m->tied) turn(V, m->H, head_of(m, x.p), m->H, x.turned, V);
  int n = read_prompts(g, s, &x), unused = 0;
  for (int i = n; i < B; i++) x.unused[unused++] = i;
  for (int t = 0; t < T; t++) {
    for (int i = 0; i < n; i++) {
      float *logp = x.outputs + (long)i * V, *sums = x.cumulative + (long)i * V;
      logprobs_of(V, g->temperatures[s], logp);
      exp_of_all(V, logp, sums);
      for (int v = 1; v < V; v++) sums[v] += sums[v - 1];
      x.child[i] = -1;
    }
    int next = 0;  // histories that follow
    for (int b = 0; b < B; b++) {
      const int h = x.of[b];
      if (h < 0) continue;
      const long at = (first + b) * T + t;
      const float *logp = x.outputs + (long)h * V, *sums = x.cumulative + (long)h * V;
      const int token = g->greedy ? likeliest(V, logp) : draw(V, sums, g->uniforms[at]);
      g->tokens[at] = token;
      g->logprobs[at] = logp[token];
      g->entropies[at] = entropy_of(V, logp);
      if (token == g->end) {
        g->lengths[first + b] = t + 1;
        g->ended[first + b] = 1;
      }
      x.of[b] = token == g->end ? -1 : follow(&x, h, token, &next);
    }
    if (!next || t + 1 == T) return;
    unused = part(&x, n, next, unused);
    n = next;
    read_all(&x, n, 1);
  }
}

int llama_sample(const struct llama_sample *g) {
  for (long row = 0; row < (long)g->S * g->B; row++)
    if (!are_tokens(g->model, g->prompts + row * g->P, g->prompt_lengths[row], 1, g->P, 1))
      return 2;
  arena a = {0};
  sampler_in(&a, g);
  return for_each(g->S, g->threads, a.used, sample_seed, g);
}
