/*
 * marks.c - see marks.h. Atomics only: may be asked from inside a driver call.
 */
#include "hooks/cuda/marks.h"

#include <stdatomic.h>

#include "shim/facts.h"

#define SMALLEST_RISE ((uint64_t)2 << 20)
#define RISES_PER_CAPACITY 100

/* All zero: nothing marked yet, and the first allocation raises a mark whatever its size. */
struct device_marks {
  _Atomic uint64_t next; /* live_bytes at which the next mark is due */
  _Atomic uint64_t rise;
};

static struct { struct device_marks devices[BSG_MAX_DEVICES]; } state;

void bsg_marks_capacity(int device, uint64_t total_bytes) {
  uint64_t rise = total_bytes / RISES_PER_CAPACITY;
  atomic_store(&state.devices[device].rise, rise > SMALLEST_RISE ? rise : SMALLEST_RISE);
}

bool bsg_marks_due(int device, uint64_t live_bytes) {
  struct device_marks *marks = &state.devices[device];
  uint64_t next = atomic_load_explicit(&marks->next, memory_order_relaxed);
  uint64_t rise;

  if (__builtin_expect(live_bytes < next || live_bytes == 0, 1))
    return false;
  rise = atomic_load(&marks->rise);
  do {
    if (live_bytes < next)
      return false;
  } while (!atomic_compare_exchange_weak(&marks->next, &next, live_bytes + (rise ? rise : SMALLEST_RISE)));
  return true;
}

void bsg_marks_forget(void) {
  for (int device = 0; device < BSG_MAX_DEVICES; device++)
    atomic_store(&state.devices[device].next, 0);
}
