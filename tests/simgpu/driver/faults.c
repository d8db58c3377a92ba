/*
 * faults.c - allocation failures on demand: which of the allocation calls, counted from 1, are to fail. Figures only.
 */
#include "internal.h"

static struct {
  uint64_t calls, refusals;
  struct sim_range ordered; /* by simgpu_fail_at(); first 0: none */
  uint64_t every, size;
  bool all, loaded;
} state;

static void load(void) {
  if (state.loaded)
    return;
  state.every = sim_config()->fail_every;
  state.size = sim_config()->fail_size;
  state.all = sim_config()->fail_all;
  state.loaded = true;
}

static bool inside(const struct sim_range *range, uint64_t call) {
  return range->first && call >= range->first && call - range->first < range->count;
}

bool sim_fault_due(enum sim_call call, uint64_t bytes) {
  const struct sim_config *c = sim_config();
  load();
  if (call == SIM_CALL_OTHER && !state.all)
    return false;
  state.calls++;
  for (int i = 0; i < c->fail_at_count; i++) {
    if (inside(&c->fail_at[i], state.calls))
      return true;
  }
  return inside(&state.ordered, state.calls) || (state.every && state.calls % state.every == 0) ||
         (state.size && bytes >= state.size);
}

void sim_fault_refused(void) {
  state.refusals++;
}

uint64_t sim_fault_calls(void) {
  return state.calls;
}

uint64_t sim_fault_refusals(void) {
  return state.refusals;
}

void sim_fault_at(uint64_t n_from_now, uint64_t count) {
  state.ordered.first = n_from_now ? state.calls + n_from_now : 0;
  state.ordered.count = count;
}

void sim_fault_every(uint64_t n) {
  load();
  state.every = n;
}

void sim_fault_size(uint64_t bytes) {
  load();
  state.size = bytes;
}

void sim_fault_all(bool all) {
  load();
  state.all = all;
}
