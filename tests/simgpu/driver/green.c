/*
 * green.c - green contexts: a part of a device's processors under a context handle of its own. It holds the device's
 * primary context, and what is allocated under it is that one's; so destroying it frees memory only where it was the
 * last to hold the primary context.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define PROCESSORS 16 /* as device.c says */

struct CUdevResourceDesc_st {
  unsigned count;
};

struct CUgreenCtx_st {
  CUgreenCtx next;
  CUcontext context;
};

static struct { CUgreenCtx all; } state;

/* ---- what a device is divided by ---- */
static CUresult whole(CUdevResource *out, CUdevResourceType type) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
    return CUDA_ERROR_INVALID_VALUE;
  memset(out, 0, sizeof *out);
  out->type = type;
  out->sm.smCount = PROCESSORS;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *out, CUdevResourceType type) {
  return sim_known_device(device) ? whole(out, type) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *out, unsigned int *groups, const CUdevResource *input,
                                     CUdevResource *rest, unsigned int flags, unsigned int least) {
  unsigned possible, size = least ? least : 1;
  CUresult result = sim_ready();
  (void)flags;
  if (result)
    return result;
  if (!groups || !input || input->type != CU_DEV_RESOURCE_TYPE_SM || size > input->sm.smCount)
    return CUDA_ERROR_INVALID_VALUE;
  possible = input->sm.smCount / size;
  if (!out || *groups > possible)
    *groups = possible;
  for (unsigned i = 0; out && i < *groups; i++) {
    out[i] = *input;
    out[i].sm.smCount = size;
  }
  if (out && rest) {
    *rest = *input;
    rest->sm.smCount = input->sm.smCount - *groups * size;
  }
  return CUDA_SUCCESS;
}

/* A description lives as long as the process, there being no call that ends one. */
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned int count) {
  static struct CUdevResourceDesc_st any = {1};
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || !resources || !count)
    return CUDA_ERROR_INVALID_VALUE;
  *out = &any;
  return CUDA_SUCCESS;
}

/* ---- green contexts ---- */
CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice device, unsigned int flags) {
  CUgreenCtx green;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || !desc || flags != CU_GREEN_CTX_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  green = calloc(1, sizeof *green);
  if (!green)
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = sim_context_borrow(device, &green->context);
  if (result) {
    free(green);
    return result;
  }
  sim_lock();
  green->next = state.all;
  state.all = green;
  sim_unlock();
  *out = green;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  CUgreenCtx *link;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  for (link = &state.all; *link && *link != green; link = &(*link)->next)
    ;
  if (*link) {
    *link = green->next;
    sim_context_hand_back(green->context);
    free(green);
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  sim_unlock();
  return result;
}

static CUresult context_of(CUgreenCtx green, CUcontext *out) {
  CUgreenCtx g;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  for (g = state.all; g && g != green; g = g->next)
    ;
  if (g && out)
    *out = g->context;
  sim_unlock();
  return g && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green) {
  return context_of(green, out);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *out, CUdevResourceType type) {
  CUcontext context;
  CUresult result = context_of(green, &context);
  return result ? result : whole(out, type);
}

CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags, int priority) {
  CUcontext context;
  CUresult result = context_of(green, &context);
  return result ? result : sim_stream_create(out, context->owner, flags, priority);
}
