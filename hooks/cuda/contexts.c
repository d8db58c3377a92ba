/*
 * contexts.c - see contexts.h. Depends on driver.h for who is current. A lock, taken where a thread meets a context
 * that is not the one of its last call; never held during a driver call.
 */
#include "hooks/cuda/contexts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "hooks/cuda/driver.h"
#include "shim/facts.h"

#define MAX_CONTEXTS 1024

struct slot {
  CUcontext handle; /* NULL: destroyed, or under destruction */
  int16_t device;
  bool used, primary;
};

static struct {
  pthread_mutex_t lock;
  _Atomic uint32_t epoch; /* a handle may mean another context from now on */
  struct slot slots[MAX_CONTEXTS];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What the thread found last, good for as long as the epoch lasts. */
static __thread struct {
  CUcontext handle;
  uint32_t epoch;
  struct bsg_context context;
} last;

/* Caller holds the lock. Number 0: not known. */
static uint16_t find(CUcontext handle) {
  for (uint16_t n = 1; handle && n < MAX_CONTEXTS; n++)
    if (state.slots[n].used && state.slots[n].handle == handle)
      return n;
  return 0;
}

/* Caller holds the lock. Number 0: there are too many. */
static uint16_t enter(CUcontext handle, int device) {
  uint16_t n = find(handle);
  if (n)
    return n;
  for (n = 1; n < MAX_CONTEXTS; n++)
    if (!state.slots[n].used) {
      state.slots[n] = (struct slot){.handle = handle, .device = (int16_t)device, .used = true};
      return n;
    }
  return 0;
}

static struct bsg_context meet(CUcontext handle) {
  struct bsg_context context = {.device = bsg_driver_device()};
  uint32_t epoch = atomic_load(&state.epoch);

  pthread_mutex_lock(&state.lock);
  context.number = enter(handle, context.device);
  pthread_mutex_unlock(&state.lock);
  last.handle = handle;
  last.epoch = epoch;
  last.context = context;
  return context;
}

struct bsg_context bsg_contexts_current(void) {
  CUcontext handle = bsg_driver_context();
  if (__builtin_expect(!handle, 0))
    return (struct bsg_context){.device = bsg_driver_device()};
  if (__builtin_expect(handle == last.handle && last.epoch == atomic_load_explicit(&state.epoch, memory_order_acquire),
                       1))
    return last.context;
  return meet(handle);
}

struct bsg_context bsg_contexts_of(CUcontext handle) {
  struct bsg_context context = {0};
  pthread_mutex_lock(&state.lock);
  context.number = find(handle);
  if (context.number)
    context.device = state.slots[context.number].device;
  pthread_mutex_unlock(&state.lock);
  return context;
}

void bsg_contexts_primary(CUcontext handle, int device) {
  uint16_t n;
  pthread_mutex_lock(&state.lock);
  n = enter(handle, device);
  if (n)
    state.slots[n].primary = true;
  pthread_mutex_unlock(&state.lock);
}

static CUcontext first_of(int device, bool primary) {
  CUcontext handle = NULL;
  pthread_mutex_lock(&state.lock);
  for (int n = 1; n < MAX_CONTEXTS && !handle; n++)
    if (state.slots[n].used && state.slots[n].device == device && (state.slots[n].primary || !primary))
      handle = state.slots[n].handle;
  pthread_mutex_unlock(&state.lock);
  return handle;
}

CUcontext bsg_contexts_primary_of(int device) {
  return first_of(device, true);
}

CUcontext bsg_contexts_any(int device) {
  return first_of(device, false);
}

struct bsg_context bsg_contexts_take(CUcontext handle) {
  struct bsg_context context = {0};
  pthread_mutex_lock(&state.lock);
  context.number = find(handle);
  if (context.number) {
    context.device = state.slots[context.number].device;
    state.slots[context.number].handle = NULL;
    atomic_fetch_add(&state.epoch, 1);
  }
  pthread_mutex_unlock(&state.lock);
  return context;
}

void bsg_contexts_put_back(CUcontext handle, struct bsg_context context) {
  if (!context.number)
    return;
  pthread_mutex_lock(&state.lock);
  state.slots[context.number].handle = handle;
  atomic_fetch_add(&state.epoch, 1);
  pthread_mutex_unlock(&state.lock);
}

void bsg_contexts_release(struct bsg_context context) {
  if (!context.number)
    return;
  pthread_mutex_lock(&state.lock);
  memset(&state.slots[context.number], 0, sizeof state.slots[0]);
  pthread_mutex_unlock(&state.lock);
}

void bsg_contexts_forget(void) {
  uint32_t epoch = atomic_load(&state.epoch);
  memset(&state, 0, sizeof state);
  pthread_mutex_init(&state.lock, NULL);
  atomic_store(&state.epoch, epoch + 1);
}
