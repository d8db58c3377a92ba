/*
 * memory.c - allocating and freeing plain and managed device memory, and what is asked about any. Every successful
 * allocation is one block of space.c, charged to one device by capacity.c, owned by one context. cuMemFree() frees the
 * blocks of memory pools and graphs too, as a real driver does.
 *
 * The 32-bit entry points of CUDA 2 serve addresses below 4 GiB, from a pool of their own. Managed memory is charged to
 * the device that was current, from the start; a real driver charges it where it is touched.
 */
#include <string.h>

#include "internal.h"

#define PITCH 512 /* bytes that rows are rounded up to */

static CUresult allocate(CUdeviceptr *out, uint64_t bytes, enum sim_pool pool) {
  CUcontext context;
  CUresult result = sim_current(&context);
  enum simgpu_kind kind = pool == SIM_POOL_MANAGED ? SIMGPU_MANAGED : SIMGPU_PLAIN;
  struct sim_place place = {0};
  const char *cause = NULL;
  int device;

  if (result)
    return result;
  if (!out || !bytes)
    return CUDA_ERROR_INVALID_VALUE;
  device = context->device;

  sim_lock();
  if (sim_capture_forbids()) {
    sim_unlock();
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (sim_fault_due(SIM_CALL_MEMORY, bytes))
    cause = "fault";
  else if (!sim_capacity_charge(device, kind, bytes))
    cause = "capacity";
  else if (sim_space_take(device, pool, bytes, &place)) {
    sim_capacity_refund(device, kind, bytes);
    cause = "host";
  } else {
    place.block->context = context;
    place.block->kind = (uint8_t)kind;
  }
  sim_journal_alloc(device, kind, bytes, place.base, cause);
  sim_unlock();

  if (cause)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (sim_config()->poison)
    memset(place.host, 0xff, bytes);
  *out = place.base;
  return CUDA_SUCCESS;
}

/* Caller holds the lock. */
static void release(const struct sim_place *place) {
  struct sim_block block = *place->block;
  uint64_t base = place->base;
  switch (block.kind) {
  case SIMGPU_POOL:
    sim_pool_release(place);
    break;
  case SIMGPU_GRAPH:
    sim_graph_release(place);
    break;
  case SIMGPU_MAPPED:
    sim_foreign_release(place);
    break;
  default:
    sim_capacity_refund(block.device, block.kind, block.bytes);
    sim_space_give(place);
    sim_journal_free(block.device, block.kind, block.bytes, base);
  }
}

/* Whether cuMemFree() serves: not for what cuIpcCloseMemHandle() closes. */
static bool freeable(const struct sim_block *block) {
  return !block->absent && (block->kind != SIMGPU_MAPPED || !block->owner);
}

CUresult sim_memory_free(uint64_t address) {
  struct sim_place place;
  CUresult result = CUDA_SUCCESS;
  sim_lock();
  if (sim_space_find(address, &place) && place.base == address && freeable(place.block))
    release(&place);
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

static CUresult give_back(uint64_t address) {
  CUresult result = sim_ready();
  return result || !address ? result : sim_memory_free(address);
}

static void drop_if_owned(const struct sim_place *place, void *context) {
  if (place->block->context == context)
    release(place);
}

void sim_memory_drop(CUcontext context) {
  sim_space_each(context->device, drop_if_owned, context);
}

/* ---- allocating ---- */
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  return allocate(out, bytes, SIM_POOL_DEVICE);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned int bytes) {
  CUdeviceptr address = 0;
  CUresult result = allocate(out ? &address : NULL, bytes, SIM_POOL_LOW);
  if (!result)
    *out = (CUdeviceptr_v1)address;
  return result;
}

static CUresult allocate_pitch(CUdeviceptr *out, uint64_t *pitch, uint64_t width, uint64_t height, unsigned element,
                               enum sim_pool pool) {
  uint64_t bytes;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || !width || !height || (element != 4 && element != 8 && element != 16) || width > UINT64_MAX - PITCH ||
      __builtin_mul_overflow(sim_round_up(width, PITCH), height, &bytes))
    return CUDA_ERROR_INVALID_VALUE;
  result = allocate(out, bytes, pool);
  if (!result)
    *pitch = sim_round_up(width, PITCH);
  return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element) {
  uint64_t bytes;
  CUresult result = allocate_pitch(pitch ? out : NULL, &bytes, width, height, element, SIM_POOL_DEVICE);
  if (!result)
    *pitch = bytes;
  return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element) {
  CUdeviceptr address = 0;
  uint64_t bytes;
  CUresult result = allocate_pitch(out && pitch ? &address : NULL, &bytes, width, height, element, SIM_POOL_LOW);
  if (result)
    return result;
  *out = (CUdeviceptr_v1)address;
  *pitch = (unsigned int)bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
    return CUDA_ERROR_INVALID_VALUE;
  return allocate(out, bytes, SIM_POOL_MANAGED);
}

/* ---- freeing ---- */
CUresult cuMemFree_v2(CUdeviceptr address) {
  return give_back(address);
}

CUresult cuMemFree(CUdeviceptr_v1 address) {
  return give_back(address);
}

/* ---- asking ---- */
static CUresult info(uint64_t *left, uint64_t *total) {
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  sim_lock();
  *total = sim_capacity_total(context->device);
  *left = sim_capacity_left(context->device);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *left, size_t *total) {
  uint64_t l, t;
  CUresult result = info(&l, &t);
  if (result)
    return result;
  if (left)
    *left = l;
  if (total)
    *total = t;
  return CUDA_SUCCESS;
}

static unsigned clip(uint64_t value) {
  return value < UINT32_MAX ? (unsigned)value : UINT32_MAX;
}

CUresult cuMemGetInfo(unsigned int *left, unsigned int *total) {
  uint64_t l, t;
  CUresult result = info(&l, &t);
  if (result)
    return result;
  if (left)
    *left = clip(l);
  if (total)
    *total = clip(t);
  return CUDA_SUCCESS;
}

/* A copy of the block that an address lies in; mapped memory of vmm_mapping.c looks like a block without a context. */
static bool look_up(uint64_t address, uint64_t *base, struct sim_block *out) {
  struct sim_place place;
  int device;
  bool found;
  sim_lock();
  found = sim_space_find(address, &place);
  if (found) {
    *base = place.base;
    *out = *place.block;
  } else {
    *out = (struct sim_block){.kind = SIMGPU_VMM};
    found = sim_vmm_find(address, base, &out->bytes, &device);
    out->device = found ? (uint8_t)device : 0;
  }
  sim_unlock();
  return found;
}

static CUresult range(uint64_t address, uint64_t *base, uint64_t *bytes) {
  struct sim_block block;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!look_up(address, base, &block))
    return CUDA_ERROR_NOT_FOUND;
  *bytes = block.bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  uint64_t b, n;
  CUresult result = range(address, &b, &n);
  if (result)
    return result;
  if (base)
    *base = b;
  if (bytes)
    *bytes = n;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *bytes, CUdeviceptr_v1 address) {
  uint64_t b, n;
  CUresult result = range(address, &b, &n);
  if (result)
    return result;
  if (base)
    *base = (CUdeviceptr_v1)b;
  if (bytes)
    *bytes = (unsigned)n;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  struct sim_block block;
  uint64_t base;
  void *pinned;
  size_t pinned_bytes;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!data)
    return CUDA_ERROR_INVALID_VALUE;
  if (!look_up(address, &base, &block)) {
    if (!sim_pinned_find((const void *)(uintptr_t)address, &pinned, &pinned_bytes))
      return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
      *(CUmemorytype *)data = CU_MEMORYTYPE_HOST;
    else if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER || attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
      *(uint64_t *)data = address;
    else
      return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
  }
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext *)data = block.context;
    break;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(CUmemorytype *)data = CU_MEMORYTYPE_DEVICE;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *(CUdeviceptr *)data = address;
    break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned int *)data = block.pool == SIM_POOL_MANAGED;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)data = block.device;
    break;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    *(CUmemoryPool *)data = block.kind == SIMGPU_POOL ? block.owner : NULL;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(unsigned int *)data = !block.absent;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr *)data = base;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)data = block.bytes;
    break;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
