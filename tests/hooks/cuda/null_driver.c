/*
 * null_driver.c - a libcuda.so.1 that does nothing, as fast as can be: what a wrapper adds is not lost in the noise of
 * a driver. Addresses are new each time, device memory is without end. For bench_alloc.
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <stdatomic.h>

#define API __attribute__((visibility("default")))

static _Atomic CUdeviceptr next_range = (CUdeviceptr)1 << 40;

API CUresult cuInit(unsigned int flags) {
  return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
  static int only;
  *context = (CUcontext)&only;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
  *device = 0;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  *bytes = (size_t)80 << 30;
  return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* Each thread hands out addresses from ranges of its own. */
API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  static __thread CUdeviceptr next, end;
  if (next == end) {
    next = atomic_fetch_add(&next_range, (CUdeviceptr)1 << 30);
    end = next + ((CUdeviceptr)1 << 30);
  }
  *address = next;
  next += 512;
  return bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
  return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
