/*
 * context_thread.c - each thread's stack of contexts, and the contexts that a thread makes for itself: cuCtxCreate()
 * pushes one, cuCtxDestroy() pops it. Only the calling thread sees its stack, so that needs no lock.
 */
#include "context.h"

#define STACK_DEPTH 64

static _Thread_local struct {
  CUcontext stack[STACK_DEPTH];
  int depth;
} mine;

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

static CUresult push(CUcontext context) {
  if (mine.depth == STACK_DEPTH)
    return CUDA_ERROR_OUT_OF_MEMORY;
  mine.stack[mine.depth++] = context;
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
  context = sim_context_make(device, false, flags);
  result = context ? sim_context_bring_up(context) : CUDA_ERROR_OUT_OF_MEMORY;
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
  result = sim_context_check(context);
  if (result)
    return result;
  if (context->primary || context->owner != context)
    return CUDA_ERROR_INVALID_CONTEXT;
  sim_lock();
  if (!context->alive) /* another thread was faster */
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  else if (all || --context->attached == 0)
    sim_context_take_down(context);
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
  result = sim_context_check(context);
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
    result = sim_context_check(context);
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
    result = sim_context_check(context);
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
