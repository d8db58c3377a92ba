/* current.c - see current.h. Atomics only. */
#include "shim/current.h"

#include <stdatomic.h>

#include "shim/bsguard.h"

static struct {
  _Atomic int64_t step; /* under way; 0: none was reported */
  _Atomic int32_t phase;
} state = {.phase = BSG_PHASE_INIT};

struct bsg_where bsg_current_where(void) {
  return (struct bsg_where){.step = atomic_load_explicit(&state.step, memory_order_relaxed),
                            .phase = atomic_load_explicit(&state.phase, memory_order_relaxed)};
}

void bsg_current_reported(void) {
  int64_t none = 0;
  atomic_compare_exchange_strong(&state.step, &none, 1);
}

int32_t bsg_current_set_phase(int32_t phase) {
  bsg_current_reported();
  return atomic_exchange(&state.phase, phase);
}

int64_t bsg_current_step(void) {
  bsg_current_reported();
  return atomic_fetch_add(&state.step, 1);
}

void bsg_current_forget(void) {
  atomic_store(&state.step, 0);
  atomic_store(&state.phase, BSG_PHASE_INIT);
}
