/*
 * lock.c - the one lock of the driver, and what fork() does to it. Knows nothing of devices.
 *
 * One lock is enough: what it guards takes some hundred nanoseconds, and copies happen outside it.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "internal.h"

static struct {
  pthread_mutex_t mutex;
  pthread_once_t once;
  atomic_bool forked;
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

void sim_lock(void) {
  pthread_mutex_lock(&state.mutex);
}

void sim_unlock(void) {
  pthread_mutex_unlock(&state.mutex);
}

bool sim_forked(void) {
  return atomic_load_explicit(&state.forked, memory_order_relaxed);
}

static void in_child(void) {
  atomic_store(&state.forked, true);
  sim_unlock();
}

static void watch(void) {
  pthread_atfork(sim_lock, sim_unlock, in_child);
}

void sim_fork_matters(void) {
  pthread_once(&state.once, watch);
}
