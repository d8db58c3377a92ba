/*
 * alloc.c - the wrappers of plain device memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree.
 */
#include "hooks/cuda/wrap.h"

/* cuMemFree takes whatever has an address. */
#define FREE(symbol, address)                                                                                          \
  BSG_FREE_OR(symbol, (address), (address),                                                                            \
              if (result == CUDA_SUCCESS && (address) != 0) bsg_record_stranger(BSG_HOOK_##symbol))

BSG_EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) {
  BSG_ALLOCATE(cuMemAlloc, (dptr, bytesize), BSG_KIND_PLAIN, bytesize, *dptr, bytesize);
}

BSG_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr_v2 *dptr, size_t bytesize) {
  BSG_ALLOCATE(cuMemAlloc_v2, (dptr, bytesize), BSG_KIND_PLAIN, bytesize, *dptr, bytesize);
}

BSG_EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width, unsigned int height,
                                    unsigned int element) {
  BSG_ALLOCATE(cuMemAllocPitch, (dptr, pitch, width, height, element), BSG_KIND_PLAIN, (uint64_t)width * height, *dptr,
               (uint64_t)*pitch * height);
}

BSG_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr_v2 *dptr, size_t *pitch, size_t width, size_t height,
                                       unsigned int element) {
  BSG_ALLOCATE(cuMemAllocPitch_v2, (dptr, pitch, width, height, element), BSG_KIND_PLAIN, (uint64_t)width * height,
               *dptr, (uint64_t)*pitch * height);
}

BSG_EXPORT CUresult cuMemAllocManaged(CUdeviceptr_v2 *dptr, size_t bytesize, unsigned int flags) {
  BSG_ALLOCATE(cuMemAllocManaged, (dptr, bytesize, flags), BSG_KIND_MANAGED, bytesize, *dptr, bytesize);
}

BSG_EXPORT CUresult cuMemFree(CUdeviceptr_v1 dptr) {
  FREE(cuMemFree, dptr);
}

BSG_EXPORT CUresult cuMemFree_v2(CUdeviceptr_v2 dptr) {
  FREE(cuMemFree_v2, dptr);
}
