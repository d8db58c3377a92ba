/*
 * pinned.c - page-locked host memory: ordinary host memory with a table of what was given out. It takes nothing from a
 * device, so it has no capacity and no faults.
 */
#include <stdlib.h>
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "internal.h"

struct piece {
  void *base;
  size_t bytes;
  UT_hash_handle hh;
};

static struct { struct piece *pieces; } state;

static CUresult allocate(void **out, size_t bytes) {
  struct piece *piece;
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  if (!out || !bytes)
    return CUDA_ERROR_INVALID_VALUE;
  piece = calloc(1, sizeof *piece);
  if (!piece || posix_memalign(&piece->base, 4096, bytes)) {
    free(piece);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  piece->bytes = bytes;
  *out = piece->base;
  sim_lock();
  HASH_ADD_PTR(state.pieces, base, piece);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
  (void)flags;
  return allocate(out, bytes);
}

CUresult cuMemAllocHost_v2(void **out, size_t bytes) {
  return allocate(out, bytes);
}

CUresult cuMemAllocHost(void **out, unsigned int bytes) {
  return allocate(out, bytes);
}

CUresult cuMemFreeHost(void *pointer) {
  struct piece *piece;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  HASH_FIND_PTR(state.pieces, &pointer, piece);
  if (piece)
    HASH_DEL(state.pieces, piece);
  sim_unlock();
  if (!piece)
    return CUDA_ERROR_INVALID_VALUE;
  free(piece->base);
  free(piece);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned int flags) {
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

bool sim_pinned_find(const void *pointer, void **base, size_t *bytes) {
  struct piece *piece, *next;
  bool found = false;
  sim_lock();
  HASH_ITER(hh, state.pieces, piece, next) {
    if ((uintptr_t)pointer - (uintptr_t)piece->base < piece->bytes) {
      *base = piece->base;
      *bytes = piece->bytes;
      found = true;
      break;
    }
  }
  sim_unlock();
  return found;
}
