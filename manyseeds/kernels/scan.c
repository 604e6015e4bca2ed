// Recurrences over the steps of rollouts, and the order of keys: rows of their own for every seed.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// y_t = x_t + decay_t y_{t+1}, and y_{T+1} = 0; all [R, T, N].
void discounted_sums(long R, long T, long N, const float *x, const float *decay, float *y) {
  for (long r = 0; r < R; r++)
    for (long t = T - 1; t >= 0; t--) {
      const long row = (r * T + t) * N;
      const float *after = t < T - 1 ? y + row + N : 0;
      for (long n = 0; n < N; n++)
        y[row + n] = x[row + n] + (after ? decay[row + n] * after[n] : 0);
    }
}

// Generalised advantage estimates [S, T, N]: A_t = delta_t + gamma lambda A_{t+1}, where neither
// reaches beyond a termination, nor A beyond a truncation. gamma, lambda: [S].
void gae(long S, long T, long N, const float *rewards, const float *values,
         const float *next_values, const uint8_t *terminated, const uint8_t *truncated,
         const float *gamma, const float *lambda, float *advantages) {
  for (long s = 0; s < S; s++)
    for (long t = T - 1; t >= 0; t--)
      for (long n = 0; n < N; n++) {
        const long i = (s * T + t) * N + n;
        const float following = terminated[i] ? 0 : gamma[s] * next_values[i];
        const int ends = t == T - 1 || terminated[i] || truncated[i];
        const float after = ends ? 0 : gamma[s] * lambda[s] * advantages[i + N];
        advantages[i] = rewards[i] + following - values[i] + after;
      }
}

// Means of the returns and lengths of the episodes that end in a rollout [S, T, N]; NaN without any.
// open_returns, open_lengths: [S, N], of the episodes that have not ended. means: [2, S].
void episode_means(long S, long T, long N, const float *rewards, const uint8_t *done,
                   float *open_returns, float *open_lengths, float *means) {
  for (long s = 0; s < S; s++) {
    double returns = 0, lengths = 0, ended = 0;
    for (long t = 0; t < T; t++)
      for (long n = 0; n < N; n++) {
        const long i = (s * T + t) * N + n;
        float *open_return = open_returns + s * N + n, *open_length = open_lengths + s * N + n;
        *open_return += rewards[i];
        *open_length += 1;
        if (!done[i]) continue;
        returns += *open_return;
        lengths += *open_length;
        ended += 1;
        *open_return = *open_length = 0;
      }
    means[s] = (float)(returns / ended);
    means[S + s] = (float)(lengths / ended);
  }
}

// Rows [S, M, size] of x [S, B, size], size in bytes, that indices [S, M] name. Returns 0, or 1 for
// an index that is none.
int take(long S, long B, long M, long size, const char *x, const int64_t *indices, char *rows) {
  for (long s = 0; s < S; s++)
    for (long i = s * M; i < (s + 1) * M; i++) {
      if (indices[i] < 0 || indices[i] >= B) return 1;
      const char *from = x + (s * B + indices[i]) * size;
      if (size == 4) memcpy(rows + i * 4, from, 4);  // a number: no call
      else if (size == 8) memcpy(rows + i * 8, from, 8);
      else memcpy(rows + i * size, from, size);
    }
  return 0;
}

enum { DIGITS = 4, BITS = 8, BUCKETS = 1 << BITS };  // an even number: the order ends in its place

// The order that sorts each row of keys [R, B], which are not negative; equal keys keep theirs.
// Radix sort: such floats are in the order of their bits. Returns 0, or 1 without memory.
int order_of(long R, long B, const float *keys, int64_t *order) {
  uint32_t *bits = malloc(sizeof(uint32_t) * B);
  int64_t *other = malloc(sizeof(int64_t) * B);
  if (bits && other)
    for (long r = 0; r < R; r++) {
      memcpy(bits, keys + r * B, sizeof(float) * B);
      int64_t *from = order + r * B, *to = other;
      for (long i = 0; i < B; i++) from[i] = i;
      for (int digit = 0; digit < DIGITS; digit++) {
        long places[BUCKETS] = {0}, next = 0;
        const int shift = digit * BITS;
        for (long i = 0; i < B; i++) places[bits[i] >> shift & (BUCKETS - 1)]++;
        for (int b = 0; b < BUCKETS; b++) {
          long count = places[b];
          places[b] = next;
          next += count;
        }
        for (long i = 0; i < B; i++) to[places[bits[from[i]] >> shift & (BUCKETS - 1)]++] = from[i];
        int64_t *swapped = from;
        from = to;
        to = swapped;
      }
    }
  int failed = !bits || !other;
  free(bits);
  free(other);
  return failed;
}
