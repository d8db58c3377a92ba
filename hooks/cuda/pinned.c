/*
 * pinned.c - the wrappers of host memory that the driver page-locks. It is entered, so that it can be told of, and is
 * in no sum of device memory.
 */
#include "hooks/cuda/wrap.h"

#define KEY(pointer) BSG_KEY(BSG_KIND_PINNED, pointer)

BSG_EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
  BSG_SET_APART(cuMemHostAlloc, (pointer, bytes, flags), BSG_KIND_PINNED, KEY(*pointer), bytes);
}

BSG_EXPORT CUresult cuMemAllocHost(void **pointer, unsigned int bytes) {
  BSG_SET_APART(cuMemAllocHost, (pointer, bytes), BSG_KIND_PINNED, KEY(*pointer), bytes);
}

BSG_EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
  BSG_SET_APART(cuMemAllocHost_v2, (pointer, bytes), BSG_KIND_PINNED, KEY(*pointer), bytes);
}

BSG_EXPORT CUresult cuMemFreeHost(void *pointer) {
  BSG_FREE(cuMemFreeHost, (pointer), pointer ? KEY(pointer) : 0);
}

BSG_EXPORT CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags) {
  BSG_SET_APART(cuMemHostRegister, (pointer, bytes, flags), BSG_KIND_PINNED, KEY(pointer), bytes);
}

BSG_EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags) {
  BSG_SET_APART(cuMemHostRegister_v2, (pointer, bytes, flags), BSG_KIND_PINNED, KEY(pointer), bytes);
}

BSG_EXPORT CUresult cuMemHostUnregister(void *pointer) {
  BSG_FREE(cuMemHostUnregister, (pointer), pointer ? KEY(pointer) : 0);
}
