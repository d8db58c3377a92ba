/*
 * lifetime.c - the wrappers of what makes and ends contexts. Making one takes memory that nobody states; ending one
 * frees all that was allocated in it and is bound to it. Pools and physical memory are not, but a device's pools go
 * with its primary context.
 */
#include "hooks/cuda/contexts.h"
#include "hooks/cuda/driver.h"
#include "hooks/cuda/wrap.h"

/* ---- making ---- */

BSG_EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice_v1 device) {
  BSG_UNSAID_ON(cuCtxCreate, (context, flags, device), device);
}

BSG_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice_v1 device) {
  BSG_UNSAID_ON(cuCtxCreate_v2, (context, flags, device), device);
}

BSG_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                                   CUdevice_v1 device) {
  BSG_UNSAID_ON(cuCtxCreate_v3, (context, affinity, count, flags, device), device);
}

BSG_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
                                   CUdevice device) {
  BSG_UNSAID_ON(cuCtxCreate_v4, (context, parameters, flags, device), device);
}

BSG_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                                     unsigned int flags) {
  BSG_UNSAID_ON(cuGreenCtxCreate, (green, resources, device, flags), device);
}

BSG_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice_v1 device) {
  BSG_ENTER(cuDevicePrimaryCtxRetain, (context, device));
  result = real(context, device);
  if (result == CUDA_SUCCESS && device >= 0 && device < BSG_MAX_DEVICES)
    bsg_contexts_primary(*context, device);
  else if (result == CUDA_ERROR_OUT_OF_MEMORY)
    bsg_record_unsaid(BSG_HOOK_cuDevicePrimaryCtxRetain, BSG_CALLER, device);
  BSG_LEAVE();
}

/* ---- ending ---- */

static void ended(struct bsg_context context) {
  uint64_t bytes[BSG_MAX_DEVICES];
  if (!context.number)
    return;
  bsg_ledger_drop_context(context.number, bytes);
  for (int device = 0; device < BSG_MAX_DEVICES; device++)
    if (bytes[device])
      bsg_record_gone_bytes(device, bytes[device]);
  bsg_contexts_release(context);
}

static void settle(CUresult result, CUcontext handle, struct bsg_context context) {
  if (result == CUDA_SUCCESS)
    ended(context);
  else
    bsg_contexts_put_back(handle, context);
}

#define DESTROY(symbol, CALL, HANDLE)                                                                                  \
  struct bsg_context context;                                                                                          \
  CUcontext handle;                                                                                                    \
  BSG_ENTER(symbol, CALL);                                                                                             \
  handle = (HANDLE);                                                                                                   \
  context = bsg_contexts_take(handle);                                                                                 \
  result = real CALL;                                                                                                  \
  settle(result, handle, context);                                                                                     \
  BSG_LEAVE()

BSG_EXPORT CUresult cuCtxDestroy(CUcontext destroyed) {
  DESTROY(cuCtxDestroy, (destroyed), destroyed);
}

BSG_EXPORT CUresult cuCtxDestroy_v2(CUcontext destroyed) {
  DESTROY(cuCtxDestroy_v2, (destroyed), destroyed);
}

BSG_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  DESTROY(cuGreenCtxDestroy, (green), bsg_driver_green_context(green));
}

/* The older way to destroy one. (cuCtxAttach(), which made it wait for a second call, went out of use with CUDA 4.) */
BSG_EXPORT CUresult cuCtxDetach(CUcontext detached) {
  DESTROY(cuCtxDetach, (detached), detached);
}

/*
 * The primary context keeps its handle, so it is looked at afterwards. A release is that of the last use, or not; a
 * reset always ends it.
 */
static void primary_ended(int device) {
  if (device < 0 || device >= BSG_MAX_DEVICES)
    return;
  ended(bsg_contexts_take(bsg_contexts_primary_of(device)));
  bsg_record_reserves_reset(device);
}

#define RELEASE(symbol)                                                                                                \
  BSG_ENTER(symbol, (device));                                                                                         \
  result = real(device);                                                                                               \
  if (result == CUDA_SUCCESS && !bsg_driver_primary_active(device))                                                    \
    primary_ended(device);                                                                                             \
  BSG_LEAVE()

#define RESET(symbol)                                                                                                  \
  BSG_ENTER(symbol, (device));                                                                                         \
  result = real(device);                                                                                               \
  if (result == CUDA_SUCCESS)                                                                                          \
    primary_ended(device);                                                                                             \
  BSG_LEAVE()

BSG_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice_v1 device) {
  RELEASE(cuDevicePrimaryCtxRelease);
}

BSG_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice_v1 device) {
  RELEASE(cuDevicePrimaryCtxRelease_v2);
}

BSG_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice_v1 device) {
  RESET(cuDevicePrimaryCtxReset);
}

BSG_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice_v1 device) {
  RESET(cuDevicePrimaryCtxReset_v2);
}
