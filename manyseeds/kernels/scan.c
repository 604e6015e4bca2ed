// Recurrences over the steps of rollouts, and the order of keys: rows of their own for every seed.
#include "scan.h"

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

void advantages_of(long T, long N, const float *rewards, const float *values,
                   const float *next_values, const unsigned char *terminated,
                   const unsigned char *truncated, float gamma, float lambda, float *advantages) {
  const float decay = gamma * lambda;
  for (long t = T - 1; t >= 0; t--)
    for (long n = 0; n < N; n++) {
      const long i = t * N + n;
      const float following = terminated[i] ? 0 : gamma * next_values[i];
      const int ends = t == T - 1 || terminated[i] || truncated[i];
      const float after = ends ? 0 : decay * advantages[i + N];
      advantages[i] = rewards[i] + following - values[i] + after;
    }
}

// The same for S seeds; all [S, T, N]. gamma, lambda: [S].
void gae(long S, long T, long N, const float *rewards, const float *values,
         const float *next_values, const uint8_t *terminated, const uint8_t *truncated,
         const float *gamma, const float *lambda, float *advantages) {
  for (long s = 0; s < S; s++) {
    const long i = s * T * N;
    advantages_of(T, N, rewards + i, values + i, next_values + i, terminated + i, truncated + i,
                  gamma[s], lambda[s], advantages + i);
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

// The same for each row of keys [R, B]. Returns 0, or 1 without memory.
int order_of(long R, long B, const float *keys, int64_t *order) {
  float *scratch = malloc(sizeof(float) * (size_t)order_scratch(B));
  for (long r = 0; scratch && r < R; r++) order_of_keys(B, keys + r * B, order + r * B, scratch);
  free(scratch);
  return !scratch;
}
