/*
 * async.c - the wrappers of stream-ordered memory and its pools. What a pool hands out is entered as such, and is part
 * of what it has reserved, which is what the device lost. In a stream that is being captured, an allocation becomes a
 * node of a graph, and its memory that of the device's graphs.
 */
#include "hooks/cuda/contexts.h"
#include "hooks/cuda/driver.h"
#include "hooks/cuda/reserves.h"
#include "hooks/cuda/wrap.h"

/* The device whose pool a stream takes from: the stream's own, the current one's where that is not known. */
static int device_of(CUstream stream, bool per_thread) {
  struct bsg_context context = bsg_contexts_current();
  /* 1 and 2 are the handles of the default streams. */
  if ((uintptr_t)stream > 2)
    context = bsg_contexts_of(bsg_driver_stream_context(stream, per_thread));
  return context.number ? context.device : bsg_contexts_current().device;
}

/* pool NULL: the current one of the stream's device. */
static CUresult request(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, size_t bytes,
                        CUmemoryPool pool, CUstream stream, bool per_thread, bool *captured) {
  int device = pool ? bsg_reserves_device(pool) : -1;
  if (device < 0)
    device = device_of(stream, per_thread);
  if (!pool)
    pool = bsg_driver_pool(device);
  *captured = bsg_driver_capturing(stream, per_thread);
  if (*captured)
    return bsg_record_request_on(call, hook, caller, 0, device);
  return bsg_record_request_pooled(call, hook, caller, bytes, pool, device);
}

static void outcome(struct bsg_call *call, CUresult result, CUdeviceptr address, size_t bytes, bool captured) {
  if (!captured || result == CUDA_ERROR_OUT_OF_MEMORY) {
    /* A pool that cannot be named (an older driver): what it hands out is all that is known of it. */
    bsg_record_outcome(call, result, call->pool ? BSG_KIND_POOLED : BSG_KIND_PLAIN, address, bytes);
  } else if (result == CUDA_SUCCESS) {
    bsg_reserves_graph(call->device);
    bsg_record_reserves(call->device);
  }
}

#define TAKE(symbol, CALL, pool, stream, per_thread)                                                                   \
  struct bsg_call call;                                                                                                \
  bool captured;                                                                                                       \
  BSG_ENTER(symbol, CALL);                                                                                             \
  result = request(&call, BSG_HOOK_##symbol, BSG_CALLER, bytesize, (pool), (stream), (per_thread), &captured);         \
  if (result == CUDA_SUCCESS)                                                                                          \
    result = real CALL;                                                                                                \
  outcome(&call, result, result == CUDA_SUCCESS ? *dptr : 0, bytesize, captured);                                      \
  BSG_LEAVE()

BSG_EXPORT CUresult cuMemAllocAsync(CUdeviceptr_v2 *dptr, size_t bytesize, CUstream stream) {
  TAKE(cuMemAllocAsync, (dptr, bytesize, stream), NULL, stream, false);
}

BSG_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr_v2 *dptr, size_t bytesize, CUstream stream) {
  TAKE(cuMemAllocAsync_ptsz, (dptr, bytesize, stream), NULL, stream, true);
}

BSG_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr_v2 *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
  TAKE(cuMemAllocFromPoolAsync, (dptr, bytesize, pool, stream), pool, stream, false);
}

BSG_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr_v2 *dptr, size_t bytesize, CUmemoryPool pool,
                                                 CUstream stream) {
  TAKE(cuMemAllocFromPoolAsync_ptsz, (dptr, bytesize, pool, stream), pool, stream, true);
}

#define FREE(symbol)                                                                                                   \
  BSG_FREE_OR(symbol, (dptr, stream), dptr,                                                                            \
              if (result == CUDA_SUCCESS && dptr != 0) bsg_record_stranger(BSG_HOOK_##symbol))

BSG_EXPORT CUresult cuMemFreeAsync(CUdeviceptr_v2 dptr, CUstream stream) {
  FREE(cuMemFreeAsync);
}

BSG_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr_v2 dptr, CUstream stream) {
  FREE(cuMemFreeAsync_ptsz);
}

/* ---- pools ---- */

BSG_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps_v1 *properties) {
  BSG_ENTER(cuMemPoolCreate, (pool, properties));
  result = real(pool, properties);
  if (result == CUDA_SUCCESS && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      properties->location.id >= 0 && properties->location.id < BSG_MAX_DEVICES)
    bsg_reserves_pool(*pool, properties->location.id);
  else if (result == CUDA_ERROR_OUT_OF_MEMORY)
    bsg_record_unsaid(BSG_HOOK_cuMemPoolCreate, BSG_CALLER, -1);
  BSG_LEAVE();
}

BSG_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  uint8_t number;
  int device;
  BSG_ENTER(cuMemPoolDestroy, (pool));
  device = bsg_reserves_device(pool);
  number = bsg_reserves_take_pool(pool);
  result = real(pool);
  if (result != CUDA_SUCCESS)
    bsg_reserves_put_pool_back(pool, number);
  if (number)
    bsg_record_reserves(device);
  BSG_LEAVE();
}

/* What changes how much a pool keeps. */
#define RESERVES(symbol, CALL)                                                                                         \
  BSG_ENTER(symbol, CALL);                                                                                             \
  result = real CALL;                                                                                                  \
  if (bsg_reserves_device(pool) >= 0)                                                                                  \
    bsg_record_reserves(bsg_reserves_device(pool));                                                                    \
  BSG_LEAVE()

BSG_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  RESERVES(cuMemPoolTrimTo, (pool, keep));
}

BSG_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  RESERVES(cuMemPoolSetAttribute, (pool, attribute, value));
}

/* Memory of another process's pool. */
BSG_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr_v2 *pointer, CUmemoryPool pool,
                                           CUmemPoolPtrExportData_v1 *data) {
  BSG_SET_APART(cuMemPoolImportPointer, (pointer, pool, data), BSG_KIND_MAPPED, *pointer, bsg_driver_size(*pointer));
}
