/*
 * alloc.c - the wrappers of plain device memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree,
 * cuMemGetInfo. Each calls the driver first and then records; an out-parameter is read only if the call succeeded.
 */
#include "hooks/cuda/record.h"
#include "shim/bsguard.h"

/*
 * The allocation wrappers differ in their arguments only. CALL: the driver call; BYTES: what is asked for; ADDRESS and
 * GIVEN: what came of it, evaluated after success.
 */
#define ALLOCATE(symbol, CALL, BYTES, ADDRESS, GIVEN)                                                                  \
  bsg_fn_##symbol real = BSG_REAL(symbol);                                                                             \
  struct bsg_call call;                                                                                                \
  CUresult result;                                                                                                     \
  if (!real)                                                                                                           \
    return CUDA_ERROR_NOT_INITIALIZED;                                                                                 \
  if (!bsg_record_enter())                                                                                             \
    return real CALL;                                                                                                  \
  result = bsg_record_request(&call, BSG_HOOK_##symbol, BSG_CALLER, (BYTES));                                          \
  if (result == CUDA_SUCCESS)                                                                                          \
    result = real CALL;                                                                                                \
  if (result == CUDA_SUCCESS)                                                                                          \
    bsg_record_outcome(&call, result, (ADDRESS), (GIVEN));                                                             \
  else                                                                                                                 \
    bsg_record_outcome(&call, result, 0, 0);                                                                           \
  bsg_record_leave();                                                                                                  \
  return result

#define FREE(symbol, address)                                                                                          \
  bsg_fn_##symbol real = BSG_REAL(symbol);                                                                             \
  struct bsg_holder_fact taken;                                                                                        \
  CUresult result;                                                                                                     \
  bool ours;                                                                                                           \
  if (!real)                                                                                                           \
    return CUDA_ERROR_NOT_INITIALIZED;                                                                                 \
  if (!bsg_record_enter())                                                                                             \
    return real(address);                                                                                              \
  ours = bsg_record_take((address), &taken);                                                                           \
  result = real(address);                                                                                              \
  if (ours)                                                                                                            \
    bsg_record_freed(&taken, result);                                                                                  \
  bsg_record_leave();                                                                                                  \
  return result

BSG_EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) {
  ALLOCATE(cuMemAlloc, (dptr, bytesize), bytesize, *dptr, bytesize);
}

BSG_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr_v2 *dptr, size_t bytesize) {
  ALLOCATE(cuMemAlloc_v2, (dptr, bytesize), bytesize, *dptr, bytesize);
}

BSG_EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width, unsigned int height,
                                    unsigned int element) {
  ALLOCATE(cuMemAllocPitch, (dptr, pitch, width, height, element), (uint64_t)width * height, *dptr,
           (uint64_t)*pitch * height);
}

BSG_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr_v2 *dptr, size_t *pitch, size_t width, size_t height,
                                       unsigned int element) {
  ALLOCATE(cuMemAllocPitch_v2, (dptr, pitch, width, height, element), (uint64_t)width * height, *dptr,
           (uint64_t)*pitch * height);
}

BSG_EXPORT CUresult cuMemAllocManaged(CUdeviceptr_v2 *dptr, size_t bytesize, unsigned int flags) {
  ALLOCATE(cuMemAllocManaged, (dptr, bytesize, flags), bytesize, *dptr, bytesize);
}

BSG_EXPORT CUresult cuMemFree(CUdeviceptr_v1 dptr) {
  FREE(cuMemFree, dptr);
}

BSG_EXPORT CUresult cuMemFree_v2(CUdeviceptr_v2 dptr) {
  FREE(cuMemFree_v2, dptr);
}
