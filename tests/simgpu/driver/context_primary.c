/*
 * context_primary.c - the primary context of each device, and contexts that are names for it. It is there while
 * somebody retains it; resetting it, or releasing it for the last time, frees what it owns.
 */
#include "context.h"

static struct {
  CUcontext primary;
  unsigned retained, flags;
} state[SIM_MAX_DEVICES];

/* Caller holds the lock. */
static CUresult retain(CUdevice device, CUcontext *out) {
  CUcontext primary = state[device].primary;
  CUresult result = CUDA_SUCCESS;
  if (!primary)
    primary = state[device].primary = sim_context_make(device, true, state[device].flags);
  if (!primary)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!primary->alive)
    result = sim_context_bring_up(primary);
  if (result)
    return result;
  state[device].retained++;
  *out = primary;
  return CUDA_SUCCESS;
}

/* Caller holds the lock. */
static CUresult release(CUdevice device) {
  if (state[device].retained == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (--state[device].retained == 0 && state[device].primary->alive)
    sim_context_take_down(state[device].primary);
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
  CUresult result = sim_ready_on(device);
  if (result)
    return result;
  sim_lock();
  result = release(device);
  sim_unlock();
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return primary_release(device);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return primary_release(device);
}

/* Everything the primary context holds is gone; whoever retained it may go on using it, as with cudaDeviceReset(). */
static CUresult primary_reset(CUdevice device) {
  CUresult result = sim_ready_on(device);
  CUcontext primary;
  if (result)
    return result;
  sim_lock();
  primary = state[device].primary;
  if (primary && primary->alive)
    sim_context_drop(primary);
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
  CUresult result = sim_ready_on(device);
  if (result)
    return result;
  sim_lock();
  state[device].flags = flags;
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
  CUresult result = sim_ready_on(device);
  if (result)
    return result;
  if (!flags || !active)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  *flags = state[device].flags;
  *active = state[device].primary && state[device].primary->alive;
  sim_unlock();
  return CUDA_SUCCESS;
}

/* ---- names for a primary context ---- */
CUresult sim_context_borrow(int device, CUcontext *out) {
  CUcontext primary, context;
  CUresult result;
  sim_lock();
  result = retain(device, &primary);
  context = result ? NULL : sim_context_make(device, false, 0);
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
