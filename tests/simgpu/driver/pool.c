/*
 * pool.c - memory pools and the allocations made from them in stream order. A pool is a reserve (reserve.c): what it
 * has reserved the device has lost, what it has handed out its clients hold. A free returns to the pool; what is unused
 * goes back to the device when it is trimmed, or at a synchronisation where more than the release threshold is
 * reserved.
 *
 * A device has a default pool. Pools belong to a device, not to a context: they end when its primary context is reset
 * or released for the last time, the default pool's handle excepted.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "newer.h"

struct CUmemPoolHandle_st {
  struct CUmemPoolHandle_st *next;
  struct sim_reserve reserve;
  uint64_t threshold, most; /* most: bytes that it may hand out at once; 0: any */
  uint64_t live;
  int reuse[3]; /* attributes that change nothing here */
  bool destroyed;
};

static struct {
  CUmemoryPool all;
  CUmemoryPool standard[SIM_MAX_DEVICES], current[SIM_MAX_DEVICES];
} state;

/* ---- pools. All of these expect the lock to be held. ---- */
static CUmemoryPool make(int device, uint64_t most) {
  CUmemoryPool pool = calloc(1, sizeof *pool);
  if (!pool)
    return NULL;
  pool->reserve = (struct sim_reserve){.device = device, .kind = SIMGPU_POOL};
  pool->most = most;
  for (size_t i = 0; i < sizeof pool->reuse / sizeof *pool->reuse; i++)
    pool->reuse[i] = 1;
  pool->next = state.all;
  state.all = pool;
  return pool;
}

static void unmake(CUmemoryPool pool) {
  CUmemoryPool *link;
  for (link = &state.all; *link != pool; link = &(*link)->next)
    ;
  *link = pool->next;
  sim_reserve_trim(&pool->reserve, 0);
  free(pool);
}

static bool is_pool(CUmemoryPool pool) {
  for (CUmemoryPool p = state.all; p; p = p->next) {
    if (p == pool)
      return !p->destroyed;
  }
  return false;
}

static CUmemoryPool standard(int device) {
  if (!state.standard[device])
    state.standard[device] = make(device, 0);
  return state.standard[device];
}

static CUmemoryPool current(int device) {
  return state.current[device] ? state.current[device] : standard(device);
}

void sim_pool_settle(int device) {
  for (CUmemoryPool p = state.all; p; p = p->next) {
    if (p->reserve.device == device && p->reserve.reserved > p->threshold)
      sim_reserve_trim(&p->reserve, p->threshold);
  }
}

void sim_pool_release(const struct sim_place *place) {
  CUmemoryPool pool = place->block->owner;
  uint64_t bytes = place->block->bytes, base = place->base;
  int device = pool->reserve.device;
  sim_reserve_put_back(&pool->reserve, bytes);
  sim_space_give(place);
  if (--pool->live == 0 && pool->destroyed)
    unmake(pool);
  sim_journal_free(device, SIMGPU_POOL, bytes, base);
}

static void release_any(const struct sim_place *place, void *unused) {
  (void)unused;
  if (place->block->kind == SIMGPU_POOL)
    sim_pool_release(place);
}

void sim_pool_drop(int device) {
  CUmemoryPool next;
  bool any = false;
  for (CUmemoryPool p = state.all; p; p = p->next)
    any |= p->reserve.device == device && p->live;
  if (any)
    sim_space_each(device, release_any, NULL);
  for (CUmemoryPool p = state.all; p; p = next) {
    next = p->next;
    if (p->reserve.device != device)
      continue;
    if (p == state.standard[device])
      sim_reserve_trim(&p->reserve, 0);
    else
      unmake(p);
  }
  state.current[device] = NULL;
}

/* ---- allocating and freeing in stream order ---- */

/* From the device's current pool where none is named. On a capturing stream it becomes a node of the graph. */
static CUresult allocate(CUdeviceptr *out, uint64_t bytes, bool named, CUmemoryPool pool, CUstream stream) {
  struct sim_place place = {0};
  CUcontext context;
  CUresult result = sim_stream_check(stream, &context);
  const char *cause = NULL;

  if (result)
    return result;
  if (!out || !bytes)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  if (!named)
    pool = current(context->device);
  if (!pool || !is_pool(pool)) {
    sim_unlock();
    return named ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (sim_stream_capture(stream)) {
    result = sim_capture_alloc(sim_stream_capture(stream), pool->reserve.device, bytes, out);
    sim_unlock();
    return result;
  }
  if (sim_fault_due(SIM_CALL_MEMORY, bytes))
    cause = "fault";
  else if ((pool->most && (bytes > pool->most || pool->reserve.used > pool->most - bytes)) ||
           !sim_reserve_use(&pool->reserve, bytes))
    cause = "capacity";
  else if (sim_space_take(pool->reserve.device, SIM_POOL_DEVICE, bytes, &place)) {
    sim_reserve_put_back(&pool->reserve, bytes);
    cause = "host";
  } else {
    place.block->kind = SIMGPU_POOL;
    place.block->owner = pool;
    pool->live++;
  }
  sim_journal_alloc(pool->reserve.device, SIMGPU_POOL, bytes, place.base, cause);
  sim_unlock();

  if (cause)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (sim_config()->poison)
    memset(place.host, 0xff, bytes);
  *out = place.base;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
  return allocate(out, bytes, false, NULL, stream);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream) {
  return allocate(out, bytes, false, NULL, stream);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate(out, bytes, true, pool, stream);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate(out, bytes, true, pool, stream);
}

static CUresult give_back(CUdeviceptr address, CUstream stream) {
  struct sim_capture *capture;
  CUcontext context;
  CUresult result = sim_stream_check(stream, &context);
  if (result || !address)
    return result;
  sim_lock();
  capture = sim_stream_capture(stream);
  if (capture)
    result = sim_capture_free(capture, address);
  sim_unlock();
  return capture ? result : sim_memory_free(address);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return give_back(address, stream);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return give_back(address, stream);
}

/* ---- pools as such ---- */
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
  pool = make(props->location.id, props->maxSize);
  sim_unlock();
  if (!pool)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *out = pool;
  return CUDA_SUCCESS;
}

/* What is still allocated from it stays, and the pool with it. */
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result = sim_ready();
  int device;
  if (result)
    return result;
  sim_lock();
  if (!is_pool(pool) || state.standard[pool->reserve.device] == pool) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    device = pool->reserve.device;
    if (state.current[device] == pool)
      state.current[device] = NULL;
    pool->destroyed = true;
    if (pool->live)
      sim_reserve_trim(&pool->reserve, 0);
    else
      unmake(pool);
  }
  sim_unlock();
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (is_pool(pool))
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
  if (value && is_pool(pool))
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
  result = value && is_pool(pool) ? set(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

/* Every device can reach every pool: there is nothing to set. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (!is_pool(pool) || (count && !desc))
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *out, CUmemoryPool pool, CUmemLocation *location) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (out && location && is_pool(pool))
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
  return of_device(out, device, standard);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  return of_device(out, device, current);
}

static CUresult choose(CUdevice device, CUmemoryPool pool) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_lock();
  if (is_pool(pool) && pool->reserve.device == device)
    state.current[device] = pool;
  else
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
  return result ? result : of_device(out, location->id, standard);
}

CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
  CUresult result = at(location, type);
  return result ? result : of_device(out, location->id, current);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  CUresult result = at(location, type);
  return result ? result : choose(location->id, pool);
}
