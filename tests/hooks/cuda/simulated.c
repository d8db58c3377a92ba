/* simulated.c - see simulated.h. */
#include "simulated.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "shim/bsguard.h"

struct simulated simulated;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *simulated_entry(const char *symbol) {
  return dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), symbol);
}

static bool active(void) {
  return true;
}

static uint64_t memory_limit(void) {
  return simulated.limit;
}

static struct bsg_where where(void) {
  return (struct bsg_where){.step = 1, .phase = BSG_PHASE_FORWARD};
}

static bool waiting(void) {
  return true;
}

static void on_device(const struct bsg_device_fact *fact) {
  (void)fact;
}

static void on_refused(const struct bsg_alloc_fact *fact) {
  atomic_fetch_add(&simulated.refusals, 1);
  pthread_mutex_lock(&lock);
  simulated.last_refused = *fact;
  pthread_mutex_unlock(&lock);
}

static void on_granted(const struct bsg_alloc_fact *fact) {
  (void)fact;
  atomic_fetch_add(&simulated.grants, 1);
}

static void on_mark(const struct bsg_mark_fact *fact) {
  (void)fact;
  atomic_fetch_add(&simulated.marks, 1);
}

static void on_unhooked(const char *name, int version) {
  fprintf(stderr, "unhooked: %s at %d\n", name, version);
  atomic_fetch_add(&simulated.unhooked, 1);
}

const struct bsg_cuda_host bsg_cuda_host = {
    .active = active,
    .driver_entry = simulated_entry,
    .next_entry = simulated_entry,
    .memory_limit = memory_limit,
    .where = where,
    .waiting = waiting,
    .device = on_device,
    .refused = on_refused,
    .granted = on_granted,
    .mark = on_mark,
    .unhooked = on_unhooked,
};
