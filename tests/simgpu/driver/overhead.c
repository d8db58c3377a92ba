/*
 * overhead.c - what the driver takes for itself: contexts, modules and libraries, streams, events and executable
 * graphs. Each takes what its option says (nothing by default), and may run out of memory as much as an allocation.
 */
#include "internal.h"

static uint64_t price(enum simgpu_kind kind) {
  const struct sim_config *c = sim_config();
  uint64_t bytes = kind == SIMGPU_CONTEXT  ? c->context_memory
                   : kind == SIMGPU_MODULE ? c->module_memory
                                           : c->queue_memory;
  return bytes;
}

CUresult sim_overhead_take(int device, enum simgpu_kind kind) {
  uint64_t bytes = price(kind);
  const char *cause = NULL;
  if (sim_fault_due(SIM_CALL_OTHER, bytes))
    cause = "fault";
  else if (bytes && !sim_capacity_charge(device, kind, bytes))
    cause = "capacity";
  if (bytes || cause)
    sim_journal_alloc(device, kind, bytes, 0, cause);
  return cause ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void sim_overhead_return(int device, enum simgpu_kind kind) {
  uint64_t bytes = price(kind);
  if (!bytes)
    return;
  sim_capacity_refund(device, kind, bytes);
  sim_journal_free(device, kind, bytes, 0);
}
