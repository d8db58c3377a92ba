/*
 * pool_handle.c - what clients do with memory pools as such: make and end them, trim them, read and set their
 * attributes, and choose a device's. Nothing is allocated here; see pool.c.
 */
#include <string.h>

#include "newer.h"
#include "pool.h"

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
  CUmemoryPool pool;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!sim_known_device(props->location.id))
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  pool = sim_pool_make(props->location.id, props->maxSize);
  sim_unlock();
  if (!pool)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *out = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (!sim_pool_end(pool))
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (sim_pool_known(pool))
    sim_reserve_trim(&pool->reserve, keep);
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

/* Where an attribute lies, as an int or as 64 bits; NULL for an unknown one. */
static void *attribute_at(CUmemoryPool pool, CUmemPool_attribute attribute, size_t *bytes) {
  *bytes = sizeof(cuuint64_t);
  switch (attribute) {
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    *bytes = sizeof(int);
    return &pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    return &pool->threshold;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    return &pool->reserve.reserved;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    return &pool->reserve.reserved_high;
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    return &pool->reserve.used;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    return &pool->reserve.used_high;
  default:
    return NULL;
  }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  CUresult result = sim_ready();
  const void *at = NULL;
  size_t bytes;
  if (result)
    return result;
  sim_lock();
  if (value && sim_pool_known(pool))
    at = attribute_at(pool, attribute, &bytes);
  if (at)
    memcpy(value, at, bytes);
  sim_unlock();
  return at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Sets an attribute of a pool; a high-water mark only to 0, which restarts it from now. */
static CUresult set(CUmemoryPool pool, CUmemPool_attribute attribute, const void *value) {
  bool high = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
  size_t bytes;
  void *at = attribute_at(pool, attribute, &bytes);
  if (!at || attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT || attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ||
      (high && *(const cuuint64_t *)value))
    return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
    pool->reserve.reserved_high = pool->reserve.reserved;
  else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
    pool->reserve.used_high = pool->reserve.used;
  else
    memcpy(at, value, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  result = value && sim_pool_known(pool) ? set(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

/* Every device can reach every pool: there is nothing to set. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (!sim_pool_known(pool) || (count && !desc))
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *out, CUmemoryPool pool, CUmemLocation *location) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (out && location && sim_pool_known(pool))
    *out = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

static CUresult of_device(CUmemoryPool *out, CUdevice device, CUmemoryPool (*which)(int)) {
  CUmemoryPool pool;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_lock();
  pool = which(device);
  sim_unlock();
  if (!pool)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *out = pool;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
  return of_device(out, device, sim_pool_standard);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  return of_device(out, device, sim_pool_current);
}

static CUresult choose(CUdevice device, CUmemoryPool pool) {
  CUresult result = sim_ready_on(device);
  if (result)
    return result;
  sim_lock();
  if (!sim_pool_choose(device, pool))
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return choose(device, pool);
}

/* ---- CUDA 13.0: the same by location and type; device memory only ---- */
static CUresult at(const CUmemLocation *location, CUmemAllocationType type) {
  if (!location)
    return CUDA_ERROR_INVALID_VALUE;
  return location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
  CUresult result = at(location, type);
  return result ? result : of_device(out, location->id, sim_pool_standard);
}

CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
  CUresult result = at(location, type);
  return result ? result : of_device(out, location->id, sim_pool_current);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  CUresult result = at(location, type);
  return result ? result : choose(location->id, pool);
}
