/*
 * context.c - cuInit, contexts, and each thread's stack of them. A context is a handle and an owner of allocations; it
 * costs SIMGPU_CONTEXT_MEMORY. Destroying one, or resetting or releasing the primary one for the last
 * time, frees what it allocated. Handles are never reused, so that a stale one is told from a live one.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "internal.h"

#define STACK_DEPTH 64

static struct {
  atomic_bool ready;
  CUcontext all; /* every context ever made */
  uint32_t made;
  struct {
    CUcontext primary;
    unsigned retained, flags;
  } device[SIM_MAX_DEVICES];
} state;

static _Thread_local struct {
  CUcontext stack[STACK_DEPTH];
  int depth;
} mine;

CUresult sim_ready(void) {
  return atomic_load_explicit(&state.ready, memory_order_acquire) && !sim_forked() ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_NOT_INITIALIZED;
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

static CUresult check(CUcontext context) {
  bool found;
  sim_lock();
  found = is_context(context);
  sim_unlock();
  if (!found)
    return CUDA_ERROR_INVALID_CONTEXT;
  return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sim_current(CUcontext *out) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (mine.depth == 0 || !mine.stack[mine.depth - 1])
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!mine.stack[mine.depth - 1]->alive)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *out = mine.stack[mine.depth - 1]->owner;
  return CUDA_SUCCESS;
}

/* Caller holds the lock. */
static CUresult bring_up(CUcontext context) {
  CUresult result = sim_overhead_take(context->device, SIMGPU_CONTEXT);
  if (!result)
    context->alive = true;
  return result;
}

/* Frees what a context owns. Memory pools and the memory of graphs are the device's, and end with its primary context.
 * Caller holds the lock. */
static void drop(CUcontext context) {
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

/* Caller holds the lock. */
static void take_down(CUcontext context) {
  drop(context);
  context->alive = false;
  sim_overhead_return(context->device, SIMGPU_CONTEXT);
}

/* Caller holds the lock. */
static CUcontext make(int device, bool primary, unsigned flags) {
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

static CUresult push(CUcontext context) {
  if (mine.depth == STACK_DEPTH)
    return CUDA_ERROR_OUT_OF_MEMORY;
  mine.stack[mine.depth++] = context;
  return CUDA_SUCCESS;
}

/* ---- primary contexts ---- */

/* Caller holds the lock. */
static CUresult retain(CUdevice device, CUcontext *out) {
  CUcontext primary = state.device[device].primary;
  CUresult result = CUDA_SUCCESS;
  if (!primary)
    primary = state.device[device].primary = make(device, true, state.device[device].flags);
  if (!primary)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!primary->alive)
    result = bring_up(primary);
  if (result)
    return result;
  state.device[device].retained++;
  *out = primary;
  return CUDA_SUCCESS;
}

/* Caller holds the lock. */
static CUresult release(CUdevice device) {
  if (state.device[device].retained == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (--state.device[device].retained == 0 && state.device[device].primary->alive)
    take_down(state.device[device].primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  CUcontext primary;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_lock();
  result = retain(device, &primary);
  sim_unlock();
  if (!result)
    *out = primary;
  return result;
}

static CUresult primary_release(CUdevice device) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_lock();
  result = release(device);
  sim_unlock();
  return result;
}

CUresult sim_context_borrow(int device, CUcontext *out) {
  CUcontext primary, context;
  CUresult result;
  sim_lock();
  result = retain(device, &primary);
  context = result ? NULL : make(device, false, 0);
  if (!result && !context) {
    release(device);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!result) {
    context->owner = primary;
    context->alive = true;
    *out = context;
  }
  sim_unlock();
  return result;
}

void sim_context_hand_back(CUcontext context) {
  context->alive = false;
  release(context->device);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return primary_release(device);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return primary_release(device);
}

/* Everything the primary context holds is gone; whoever retained it may go on using it, as with cudaDeviceReset(). */
static CUresult primary_reset(CUdevice device) {
  CUresult result = sim_ready();
  CUcontext primary;
  if (result)
    return result;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_lock();
  primary = state.device[device].primary;
  if (primary && primary->alive)
    drop(primary);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return primary_reset(device);
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return primary_reset(device);
}

static CUresult primary_set_flags(CUdevice device, unsigned int flags) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_lock();
  state.device[device].flags = flags;
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  return primary_set_flags(device, flags);
}
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  return primary_set_flags(device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  if (!flags || !active)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  *flags = state.device[device].flags;
  *active = state.device[device].primary && state.device[device].primary->alive;
  sim_unlock();
  return CUDA_SUCCESS;
}

/* ---- contexts of one's own ---- */
static CUresult create(CUcontext *out, unsigned int flags, CUdevice device) {
  CUresult result = sim_ready();
  CUcontext context;
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  if (mine.depth == STACK_DEPTH)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_lock();
  context = make(device, false, flags);
  result = context ? bring_up(context) : CUDA_ERROR_OUT_OF_MEMORY;
  sim_unlock();
  if (!result) {
    *out = context;
    result = push(context);
  }
  return result;
}

CUresult cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice device) {
  return create(out, flags, device);
}
CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device) {
  return create(out, flags, device);
}
CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device) {
  (void)affinity, (void)count;
  return create(out, flags, device);
}
CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
  (void)params;
  return create(out, flags, device);
}

/* Takes one attachment of a context away, or all of them; with the last it ends. */
static CUresult detach(CUcontext context, bool all) {
  CUresult result = sim_ready();
  if (result)
    return result;
  result = check(context);
  if (result)
    return result;
  if (context->primary || context->owner != context)
    return CUDA_ERROR_INVALID_CONTEXT;
  sim_lock();
  if (!context->alive) /* another thread was faster */
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  else if (all || --context->attached == 0)
    take_down(context);
  sim_unlock();
  if (!context->alive && mine.depth && mine.stack[mine.depth - 1] == context)
    mine.depth--;
  return result;
}

static CUresult destroy(CUcontext context) {
  return detach(context, true);
}

CUresult cuCtxDestroy(CUcontext context) {
  return destroy(context);
}
CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroy(context);
}

/* The counted attachments of CUDA 2, to the calling thread's context only. */
CUresult cuCtxAttach(CUcontext *out, unsigned int flags) {
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  if (!out || flags)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  context->attached++;
  sim_unlock();
  *out = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext context) {
  return detach(context, false);
}

CUresult cuCtxSetCurrent(CUcontext context) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!context) {
    mine.depth -= mine.depth > 0;
    return CUDA_SUCCESS;
  }
  if (mine.depth && mine.stack[mine.depth - 1] == context && context->alive)
    return CUDA_SUCCESS; /* what nearly every call asks for */
  result = check(context);
  if (result)
    return result;
  mine.depth -= mine.depth > 0;
  return push(context);
}

CUresult cuCtxGetCurrent(CUcontext *out) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  *out = mine.depth ? mine.stack[mine.depth - 1] : NULL;
  return CUDA_SUCCESS;
}

static CUresult push_checked(CUcontext context) {
  CUresult result = sim_ready();
  if (!result)
    result = check(context);
  return result ? result : push(context);
}

CUresult cuCtxPushCurrent(CUcontext context) {
  return push_checked(context);
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return push_checked(context);
}

static CUresult pop(CUcontext *out) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (mine.depth == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  mine.depth--;
  if (out)
    *out = mine.stack[mine.depth];
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *out) {
  return pop(out);
}
CUresult cuCtxPopCurrent_v2(CUcontext *out) {
  return pop(out);
}

CUresult cuCtxGetDevice(CUdevice *out) {
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  *out = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *out) {
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  *out = context->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *out) {
  CUresult result = sim_ready();
  if (!result && context)
    result = check(context);
  if (!result && !out)
    result = CUDA_ERROR_INVALID_VALUE;
  if (!result)
    *out = 3020;
  return result;
}

/* Nothing is ever pending. */
CUresult cuCtxSynchronize(void) {
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  sim_lock();
  sim_pool_settle(context->device);
  sim_unlock();
  return CUDA_SUCCESS;
}
