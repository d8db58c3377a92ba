/*
 * info.c - the wrappers of cuMemGetInfo: the driver's own figures, but under a memory limit those of a smaller card.
 */
#include "hooks/cuda/driver.h"
#include "hooks/cuda/record.h"
#include "shim/bsguard.h"

BSG_EXPORT CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes) {
  bsg_fn_cuMemGetInfo real = BSG_REAL(cuMemGetInfo);
  CUresult result;
  if (!real)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!bsg_record_enter())
    return real(free_bytes, total_bytes);
  result = real(free_bytes, total_bytes);
  if (result == CUDA_SUCCESS && free_bytes && total_bytes) {
    uint64_t bytes_free = *free_bytes, bytes_total = *total_bytes;
    bsg_record_limit_info(bsg_driver_device(), &bytes_free, &bytes_total);
    *free_bytes = (unsigned int)bytes_free;
    *total_bytes = (unsigned int)bytes_total;
  }
  bsg_record_leave();
  return result;
}

BSG_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  bsg_fn_cuMemGetInfo_v2 real = BSG_REAL(cuMemGetInfo_v2);
  CUresult result;
  if (!real)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!bsg_record_enter())
    return real(free_bytes, total_bytes);
  result = real(free_bytes, total_bytes);
  if (result == CUDA_SUCCESS && free_bytes && total_bytes) {
    uint64_t bytes_free = *free_bytes, bytes_total = *total_bytes;
    bsg_record_limit_info(bsg_driver_device(), &bytes_free, &bytes_total);
    *free_bytes = bytes_free;
    *total_bytes = bytes_total;
  }
  bsg_record_leave();
  return result;
}
