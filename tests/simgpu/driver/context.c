/*
 * context.c - cuInit, and contexts as such: a context is a handle and an owner of allocations; it costs
 * SIMGPU_CONTEXT_MEMORY. What ends with one is freed from here. Handles are never reused, so that a stale one is told
 * from a live one. Knows neither primary contexts' rules (context_primary.c) nor threads (context_thread.c).
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "context.h"

static struct {
  atomic_bool ready;
  CUcontext all; /* every context ever made */
  uint32_t made;
} state;

CUresult sim_ready(void) {
  return atomic_load_explicit(&state.ready, memory_order_acquire) && !sim_forked() ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult sim_ready_on(int device) {
  CUresult result = sim_ready();
  return result || sim_known_device(device) ? result : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuInit(unsigned int flags) {
  if (sim_forked())
    return CUDA_ERROR_NOT_INITIALIZED;
  if (flags)
    return CUDA_ERROR_INVALID_VALUE;
  if (sim_config()->devices == 0)
    return CUDA_ERROR_NO_DEVICE;
  sim_fork_matters();
  atomic_store_explicit(&state.ready, true, memory_order_release);
  return CUDA_SUCCESS;
}

/* Caller holds the lock. */
static bool is_context(CUcontext context) {
  for (CUcontext c = state.all; c; c = c->next) {
    if (c == context)
      return true;
  }
  return false;
}

CUresult sim_context_check(CUcontext context) {
  bool found;
  sim_lock();
  found = is_context(context);
  sim_unlock();
  if (!found)
    return CUDA_ERROR_INVALID_CONTEXT;
  return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sim_context_bring_up(CUcontext context) {
  CUresult result = sim_overhead_take(context->device, SIMGPU_CONTEXT);
  if (!result)
    context->alive = true;
  return result;
}

/* Memory pools and the memory of graphs are the device's, and end with its primary context. */
void sim_context_drop(CUcontext context) {
  sim_stream_drop(context);
  sim_module_drop(context);
  sim_memory_drop(context);
  sim_array_drop(context);
  sim_pinned_drop(context);
  if (context->primary) {
    sim_pool_drop(context->device);
    sim_graph_drop(context->device);
  }
}

void sim_context_take_down(CUcontext context) {
  sim_context_drop(context);
  context->alive = false;
  sim_overhead_return(context->device, SIMGPU_CONTEXT);
}

CUcontext sim_context_make(int device, bool primary, unsigned flags) {
  CUcontext context = calloc(1, sizeof *context);
  if (!context)
    return NULL;
  context->id = ++state.made;
  context->device = device;
  context->primary = primary;
  context->flags = flags;
  context->attached = 1;
  context->owner = context;
  context->next = state.all;
  state.all = context;
  return context;
}
