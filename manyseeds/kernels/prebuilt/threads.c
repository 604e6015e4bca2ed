// The functions of an OpenMP runtime that clang calls for `for_each` (parallel.h), on POSIX threads:
// a library of a wheel cannot expect such a runtime on every system. Its threads end with each call.
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

// Another library of the process may have functions of these names.
#pragma GCC visibility push(hidden)

enum { ARGUMENTS = 8 };  // that a parallel region may share

typedef void region(int32_t *thread, int32_t *bound, void *, void *, void *, void *, void *, void *,
                    void *, void *);

typedef struct {
  int size, waiting, passed;  // threads; those at the barrier; how often all have passed it
  pthread_mutex_t lock;
  pthread_cond_t all_there;
  region *run;
  void *shared[ARGUMENTS];
} team;

typedef struct {
  team *team;
  int number;
} member;

static _Thread_local member own;     // of the team that this thread is in; null: of none
static _Thread_local int requested;  // threads of the next team
static _Thread_local int alone;      // how many regions deep this thread runs one by itself

static void compute(member m) {
  void **x = m.team->shared;
  const member before = own;
  int32_t thread = m.number, bound = m.number;
  own = m;
  m.team->run(&thread, &bound, x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
  own = before;
}

static void *compute_in_thread(void *given) {
  const member m = *(member *)given;
  pthread_mutex_lock(&m.team->lock);  // until the size of the team is known
  pthread_mutex_unlock(&m.team->lock);
  compute(m);
  return 0;
}

void __kmpc_push_num_threads(void *where, int32_t thread, int32_t count) {
  (void)where, (void)thread;
  requested = count;
}

void __kmpc_fork_call(void *where, int32_t count, region *run, ...) {
  (void)where;
  team t = {1, 0, 0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, run, {0}};
  if (count > ARGUMENTS) abort();
  va_list shared;
  va_start(shared, run);
  for (int i = 0; i < count; i++) t.shared[i] = va_arg(shared, void *);
  va_end(shared);
  const int size = own.team ? 1 : requested > 1 ? requested : 1;
  requested = 0;
  member *members = malloc(sizeof(member) * size);
  pthread_t *threads = malloc(sizeof(pthread_t) * size);
  pthread_mutex_lock(&t.lock);
  for (int n = 1; members && threads && n < size; n++) {
    members[n] = (member){&t, n};
    if (pthread_create(&threads[n], 0, compute_in_thread, &members[n])) break;
    t.size++;
  }
  pthread_mutex_unlock(&t.lock);
  compute((member){&t, 0});
  for (int n = 1; n < t.size; n++) pthread_join(threads[n], 0);
  free(members);
  free(threads);
}

void __kmpc_serialized_parallel(void *where, int32_t thread) {
  (void)where, (void)thread;
  alone++;
}

void __kmpc_end_serialized_parallel(void *where, int32_t thread) {
  (void)where, (void)thread;
  alone--;
}

int32_t __kmpc_global_thread_num(void *where) {
  (void)where;
  return own.number;
}

void __kmpc_barrier(void *where, int32_t thread) {
  (void)where, (void)thread;
  team *t = own.team;
  if (alone || !t || t->size == 1) return;
  pthread_mutex_lock(&t->lock);
  const int passed = t->passed;
  if (++t->waiting == t->size) {
    t->waiting = 0;
    t->passed++;
    pthread_cond_broadcast(&t->all_there);
  }
  while (passed == t->passed) pthread_cond_wait(&t->all_there, &t->lock);
  pthread_mutex_unlock(&t->lock);
}

// Leaves of lower ... upper what this thread does: `schedule(static)`.
void __kmpc_for_static_init_4(void *where, int32_t thread, int32_t kind, int32_t *last,
                              int32_t *lower, int32_t *upper, int32_t *stride, int32_t step,
                              int32_t chunk) {
  (void)where, (void)thread, (void)kind, (void)step, (void)chunk;
  const int alike = alone || !own.team;
  const int64_t count = (int64_t)*upper - *lower + 1, size = alike ? 1 : own.team->size;
  const int64_t n = alike ? 0 : own.number, from = *lower;
  *stride = (int32_t)count;
  *last = n == size - 1;
  *lower = (int32_t)(from + count * n / size);
  *upper = (int32_t)(from + count * (n + 1) / size - 1);
}

void __kmpc_for_static_fini(void *where, int32_t thread) { (void)where, (void)thread; }

#pragma GCC visibility pop
