/*
 * pool.c - memory pools, and the allocations made from them in stream order. A pool is a reserve (reserve.c): what it
 * has reserved the device has lost, what it has handed out its clients hold. A free returns to the pool; what is unused
 * goes back to the device when it is trimmed, or at a synchronisation where more than the release threshold is
 * reserved.
 *
 * A device has a default pool. Pools belong to a device, not to a context: they end when its primary context is reset
 * or released for the last time, the default pool's handle excepted.
 */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

static struct {
  CUmemoryPool all;
  CUmemoryPool standard[SIM_MAX_DEVICES], current[SIM_MAX_DEVICES];
} state;

/* ---- pools. Callers hold the lock. ---- */
CUmemoryPool sim_pool_make(int device, uint64_t most) {
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

bool sim_pool_known(CUmemoryPool pool) {
  for (CUmemoryPool p = state.all; p; p = p->next) {
    if (p == pool)
      return !p->destroyed;
  }
  return false;
}

CUmemoryPool sim_pool_standard(int device) {
  if (!state.standard[device])
    state.standard[device] = sim_pool_make(device, 0);
  return state.standard[device];
}

CUmemoryPool sim_pool_current(int device) {
  return state.current[device] ? state.current[device] : sim_pool_standard(device);
}

bool sim_pool_end(CUmemoryPool pool) {
  int device;
  if (!sim_pool_known(pool) || state.standard[pool->reserve.device] == pool)
    return false;
  device = pool->reserve.device;
  if (state.current[device] == pool)
    state.current[device] = NULL;
  pool->destroyed = true;
  if (pool->live)
    sim_reserve_trim(&pool->reserve, 0);
  else
    unmake(pool);
  return true;
}

bool sim_pool_choose(int device, CUmemoryPool pool) {
  if (!sim_pool_known(pool) || pool->reserve.device != device)
    return false;
  state.current[device] = pool;
  return true;
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
    pool = sim_pool_current(context->device);
  if (!pool || !sim_pool_known(pool)) {
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
