/*
 * pinned.c - page-locked host memory: host memory that the driver allocated, and host memory of the program's own that
 * was registered. It takes nothing from a device and has no capacity; SIMGPU_PINNED counts it for the device that was
 * current. It ends with its context: what was allocated is freed, what was registered is forgotten.
 */
#include <stdlib.h>

#include "internal.h"
#include "table.h"

struct piece {
  void *base;
  size_t bytes;
  unsigned flags;
  bool registered;
  CUcontext context;
  UT_hash_handle hh;
};

static struct { struct piece *pieces; } state;

/* Caller holds the lock. */
static struct piece *piece_at(const void *pointer) {
  struct piece *piece, *next;
  HASH_FIND_PTR(state.pieces, &pointer, piece);
  if (piece)
    return piece;
  HASH_ITER(hh, state.pieces, piece, next) {
    if ((uintptr_t)pointer - (uintptr_t)piece->base < piece->bytes)
      return piece;
  }
  return NULL;
}

/* Caller holds the lock. */
static bool overlaps(const void *base, size_t bytes) {
  struct piece *piece, *next;
  HASH_ITER(hh, state.pieces, piece, next) {
    if ((uintptr_t)base < (uintptr_t)piece->base + piece->bytes && (uintptr_t)piece->base < (uintptr_t)base + bytes)
      return true;
  }
  return false;
}

/* Caller holds the lock. */
static void drop(struct piece *piece) {
  HASH_DEL(state.pieces, piece);
  sim_capacity_refund(piece->context->device, SIMGPU_PINNED, piece->bytes);
  if (!piece->registered)
    free(piece->base);
  free(piece);
}

void sim_pinned_drop(CUcontext context) {
  struct piece *piece, *next;
  HASH_ITER(hh, state.pieces, piece, next) {
    if (piece->context == context)
      drop(piece);
  }
}

/* Enters memory in the table; with no base it is allocated. */
static CUresult enter(void *base, void **out, size_t bytes, unsigned flags) {
  CUcontext context;
  CUresult result = sim_current(&context);
  struct piece *piece;
  bool registered = base != NULL;
  if (result)
    return result;
  if ((!out && !registered) || !bytes || (uintptr_t)base > UINTPTR_MAX - bytes)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  piece = calloc(1, sizeof *piece);
  if (registered && overlaps(base, bytes))
    result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  else if (sim_fault_due(SIM_CALL_OTHER, bytes) || !piece || (!registered && posix_memalign(&base, 4096, bytes)))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  if (!result) {
    *piece = (struct piece){.base = base, .bytes = bytes, .flags = flags, .registered = registered, .context = context};
    HASH_ADD_PTR(state.pieces, base, piece);
    if (!SIM_ENTERED(piece)) {
      if (!registered)
        free(base);
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  if (!result) {
    sim_capacity_charge(context->device, SIMGPU_PINNED, bytes);
    if (out)
      *out = base;
  } else {
    free(piece);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
      sim_fault_refused();
  }
  sim_unlock();
  return result;
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
  return enter(NULL, out, bytes, flags);
}

CUresult cuMemAllocHost_v2(void **out, size_t bytes) {
  return enter(NULL, out, bytes, 0);
}

CUresult cuMemAllocHost(void **out, unsigned int bytes) {
  return enter(NULL, out, bytes, 0);
}

static CUresult enroll(void *base, size_t bytes, unsigned flags) {
  return base ? enter(base, NULL, bytes, flags) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostRegister_v2(void *base, size_t bytes, unsigned int flags) {
  return enroll(base, bytes, flags);
}

CUresult cuMemHostRegister(void *base, size_t bytes, unsigned int flags) {
  return enroll(base, bytes, flags);
}

/* Takes out what starts at an address and came in that way. */
static CUresult leave(void *pointer, bool registered, CUresult missing) {
  struct piece *piece;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  HASH_FIND_PTR(state.pieces, &pointer, piece);
  if (piece && piece->registered == registered)
    drop(piece);
  else
    result = missing;
  sim_unlock();
  return result;
}

CUresult cuMemFreeHost(void *pointer) {
  return leave(pointer, false, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostUnregister(void *pointer) {
  return leave(pointer, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

static CUresult device_pointer(uint64_t *out, void *pointer, unsigned flags) {
  CUresult result = sim_ready();
  void *base;
  size_t bytes;
  if (result)
    return result;
  if (!out || flags || !sim_pinned_find(pointer, &base, &bytes))
    return CUDA_ERROR_INVALID_VALUE;
  *out = (uintptr_t)pointer;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned int flags) {
  uint64_t address;
  CUresult result = device_pointer(out ? &address : NULL, pointer, flags);
  if (!result)
    *out = address;
  return result;
}

/* The 32-bit form cannot say where memory above 4 GiB lies. */
CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *out, void *pointer, unsigned int flags) {
  uint64_t address;
  CUresult result = device_pointer(out ? &address : NULL, pointer, flags);
  if (!result && address > UINT32_MAX)
    result = CUDA_ERROR_INVALID_VALUE;
  if (!result)
    *out = (CUdeviceptr_v1)address;
  return result;
}

CUresult cuMemHostGetFlags(unsigned int *out, void *pointer) {
  const struct piece *piece;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  piece = piece_at(pointer);
  if (piece && out)
    *out = piece->flags;
  sim_unlock();
  return piece && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool sim_pinned_find(const void *pointer, void **base, size_t *bytes) {
  const struct piece *piece;
  sim_lock();
  piece = piece_at(pointer);
  if (piece) {
    *base = piece->base;
    *bytes = piece->bytes;
  }
  sim_unlock();
  return piece != NULL;
}
