// Recurrences over the steps of rollouts, and the order of keys, for S seeds.
#include "scan.h"

#include <string.h>

#include "parallel.h"

// y_t = x_t + decay_t y_{t+1}, and y_{T+1} = 0.
struct discounted_sums {
  int S, T, threads;
  long N;
  const float *x, *decay;  // [S, T, N]
  float *y;                // [S, T, N]
};

static void sums_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct discounted_sums *a = given;
  for (long t = a->T - 1; t >= 0; t--) {
    const long row = (s * (long)a->T + t) * a->N;
    const float *after = t < a->T - 1 ? a->y + row + a->N : 0;
    for (long n = 0; n < a->N; n++)
      a->y[row + n] = a->x[row + n] + (after ? a->decay[row + n] * after[n] : 0);
  }
}

int discounted_sums(const struct discounted_sums *x) {
  return for_each(x->S, x->threads, 0, sums_of_seed, x);
}

void advantages_of(long T, long N, const float *rewards, const float *values,
                   const float *next_values, const unsigned char *terminated,
                   const unsigned char *truncated, float gamma, float lambda, float *advantages) {
  const float decay = gamma * lambda;
  for (long t = T - 1; t >= 0; t--)
    for (long n = 0; n < N; n++) {
      const long i = t * N + n;
      const float following = gamma * next_values[i] * !terminated[i];  // NaN stays
      const int ends = t == T - 1 || terminated[i] || truncated[i];
      const float after = ends ? 0 : decay * advantages[i + N];
      advantages[i] = rewards[i] + following - values[i] + after;
    }
}

void n_step_advantages_of(long T, long N, const float *rewards, const float *values,
                          const float *next_values, const unsigned char *terminated,
                          const unsigned char *truncated, float gamma, long n, float *advantages) {
  for (long i = 0; i < T * N; i++) {
    long last = i;  // of the steps whose rewards count
    while (last < i + (n - 1) * N && last < (T - 1) * N && !terminated[last] && !truncated[last])
      last += N;
    float target = rewards[last] + gamma * next_values[last] * !terminated[last];  // NaN stays
    while (last > i) {
      last -= N;
      target = rewards[last] + gamma * target;
    }
    advantages[i] = target - values[i];
  }
}

struct gae {
  int S, T, N, threads;
  const float *rewards, *values, *next_values;  // [S, T, N]
  const unsigned char *terminated, *truncated;  // [S, T, N]
  const float *gamma, *gae_lambda;              // [S]
  float *advantages;                            // [S, T, N]
};

static void gae_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct gae *x = given;
  const long i = s * (long)x->T * x->N;
  advantages_of(x->T, x->N, x->rewards + i, x->values + i, x->next_values + i, x->terminated + i,
                x->truncated + i, x->gamma[s], x->gae_lambda[s], x->advantages + i);
}

int gae(const struct gae *x) { return for_each(x->S, x->threads, 0, gae_of_seed, x); }

// Means of the returns and lengths of the episodes that end in a rollout; NaN without any.
struct episode_means {
  int S, T, N, threads;
  const float *rewards;               // [S, T, N]
  const unsigned char *done;          // [S, T, N]
  float *open_returns, *open_lengths;  // [S, N], of the episodes that have not ended
  float *means;                       // [2, S]
};

static void means_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct episode_means *x = given;
  const long N = x->N;
  double returns = 0, lengths = 0, ended = 0;
  for (long t = 0; t < x->T; t++)
    for (long n = 0; n < N; n++) {
      const long i = (s * (long)x->T + t) * N + n;
      float *open_return = x->open_returns + s * N + n, *open_length = x->open_lengths + s * N + n;
      *open_return += x->rewards[i];
      *open_length += 1;
      if (!x->done[i]) continue;
      returns += *open_return;
      lengths += *open_length;
      ended += 1;
      *open_return = *open_length = 0;
    }
  x->means[s] = (float)(returns / ended);
  x->means[x->S + s] = (float)(lengths / ended);
}

int episode_means(const struct episode_means *x) {
  return for_each(x->S, x->threads, 0, means_of_seed, x);
}

// Rows that indices name, of `size` bytes each.
struct take {
  int S, threads;
  long B, M, size;
  const void *x;           // S times B rows
  const int64_t *indices;  // [S, M]
  void *rows;              // S times M rows
};

static void take_of_seed(const void *given, int s, float *scratch) {
  (void)scratch;
  const struct take *a = given;
  const long size = a->size;
  const char *x = a->x;
  char *rows = a->rows;
  for (long i = s * a->M; i < (s + 1) * a->M; i++) {
    const char *from = x + (s * a->B + a->indices[i]) * size;
    if (size == 4) memcpy(rows + i * 4, from, 4);  // a number: no call
    else if (size == 8) memcpy(rows + i * 8, from, 8);
    else memcpy(rows + i * size, from, size);
  }
}

int take(const struct take *x) {
  for (long i = 0; i < x->S * x->M; i++)
    if (x->indices[i] < 0 || x->indices[i] >= x->B) return 2;
  return for_each(x->S, x->threads, 0, take_of_seed, x);
}

enum { DIGITS = 4, BITS = 8, BUCKETS = 1 << BITS };  // an even number: the order ends in its place

void order_of_keys(long B, const float *keys, int64_t *order, float *scratch) {
  // Radix sort: such floats are in the order of their bits.
  uint32_t *bits = (uint32_t *)scratch;
  int64_t *from = order, *to = (int64_t *)(scratch + (B + 1) / 2 * 2);
  memcpy(bits, keys, sizeof(float) * B);
  for (long i = 0; i < B; i++) from[i] = i;
  for (int digit = 0; digit < DIGITS; digit++) {
    long places[BUCKETS] = {0}, next = 0;
    const int shift = digit * BITS;
    for (long i = 0; i < B; i++) places[bits[i] >> shift & (BUCKETS - 1)]++;
    for (int b = 0; b < BUCKETS; b++) {
      const long count = places[b];
      places[b] = next;
      next += count;
    }
    for (long i = 0; i < B; i++) to[places[bits[from[i]] >> shift & (BUCKETS - 1)]++] = from[i];
    int64_t *swapped = from;
    from = to;
    to = swapped;
  }
}

struct order_of {
  int R, B, threads;
  const float *keys;  // [R, B]
  int64_t *order;     // [R, B]
};

static void order_of_row(const void *given, int r, float *scratch) {
  const struct order_of *x = given;
  const long first = r * (long)x->B;
  order_of_keys(x->B, x->keys + first, x->order + first, scratch);
}

int order_of(const struct order_of *x) {
  return for_each(x->R, x->threads, order_scratch(x->B), order_of_row, x);
}
