/*
 * copy.c - copies and fills. Both ends of a copy are checked to lie inside one live block where they are device memory;
 * all is done before the call returns, so the asynchronous and the per-thread forms are the same code under other
 * names.
 */
#include <string.h>

#include "internal.h"

/* Where the host reaches bytes of device memory; NULL unless all of them lie in one live block or are mapped. */
static char *device(uint64_t address, uint64_t bytes) {
  struct sim_place place;
  char *host = NULL;
  sim_lock();
  if (!sim_space_find(address, &place))
    host = sim_vmm_reach(address, bytes);
  else if (!place.block->absent && bytes <= place.block->bytes - (address - place.base))
    host = place.host;
  sim_unlock();
  return host;
}

/* The same for an address that may be the host's own, as cuMemcpy takes. */
static char *anywhere(uint64_t address, uint64_t bytes) {
  char *found = device(address, bytes);
  return found ? found : (char *)(uintptr_t)address;
}

static CUresult copy(char *to, const char *from, uint64_t bytes) {
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result || bytes == 0)
    return result;
  if (!to || !from)
    return CUDA_ERROR_INVALID_VALUE;
  memmove(to, from, bytes);
  return CUDA_SUCCESS;
}

static CUresult fill(uint64_t address, const void *pattern, uint64_t width, uint64_t count) {
  CUcontext context;
  CUresult result = sim_current(&context);
  uint64_t bytes;
  char *to;
  if (result || count == 0)
    return result;
  if (__builtin_mul_overflow(width, count, &bytes) || address % width)
    return CUDA_ERROR_INVALID_VALUE;
  to = device(address, bytes);
  if (!to)
    return CUDA_ERROR_INVALID_VALUE;
  if (width == 1) {
    memset(to, *(const unsigned char *)pattern, bytes);
  } else {
    for (uint64_t i = 0; i < count; i++)
      memcpy(to + i * width, pattern, width);
  }
  return CUDA_SUCCESS;
}

/* One operation under all its names: 32-bit, 64-bit, per-thread, and the asynchronous ones with a stream that is
 * ignored. */
#define COPY(name, to_type, from_type, to_expr, from_expr, low_to, low_from)                                           \
  CUresult name(low_to to, low_from from, unsigned int bytes) {                                                        \
    return copy(to_expr, from_expr, bytes);                                                                            \
  }                                                                                                                    \
  CUresult name##_v2(to_type to, from_type from, size_t bytes) {                                                       \
    return copy(to_expr, from_expr, bytes);                                                                            \
  }                                                                                                                    \
  CUresult name##_v2_ptds(to_type to, from_type from, size_t bytes) {                                                  \
    return copy(to_expr, from_expr, bytes);                                                                            \
  }                                                                                                                    \
  CUresult name##Async(low_to to, low_from from, unsigned int bytes, CUstream stream) {                                \
    (void)stream;                                                                                                      \
    return copy(to_expr, from_expr, bytes);                                                                            \
  }                                                                                                                    \
  CUresult name##Async_v2(to_type to, from_type from, size_t bytes, CUstream stream) {                                 \
    (void)stream;                                                                                                      \
    return copy(to_expr, from_expr, bytes);                                                                            \
  }                                                                                                                    \
  CUresult name##Async_v2_ptsz(to_type to, from_type from, size_t bytes, CUstream stream) {                            \
    (void)stream;                                                                                                      \
    return copy(to_expr, from_expr, bytes);                                                                            \
  }

COPY(cuMemcpyHtoD, CUdeviceptr, const void *, device(to, bytes), from, CUdeviceptr_v1, const void *)
COPY(cuMemcpyDtoH, void *, CUdeviceptr, to, device(from, bytes), void *, CUdeviceptr_v1)
COPY(cuMemcpyDtoD, CUdeviceptr, CUdeviceptr, device(to, bytes), device(from, bytes), CUdeviceptr_v1, CUdeviceptr_v1)

#define COPY_UNIFIED(name)                                                                                             \
  CUresult name(CUdeviceptr to, CUdeviceptr from, size_t bytes) {                                                      \
    return copy(anywhere(to, bytes), anywhere(from, bytes), bytes);                                                    \
  }
#define COPY_UNIFIED_ASYNC(name)                                                                                       \
  CUresult name(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {                                     \
    (void)stream;                                                                                                      \
    return copy(anywhere(to, bytes), anywhere(from, bytes), bytes);                                                    \
  }

COPY_UNIFIED(cuMemcpy)
COPY_UNIFIED(cuMemcpy_ptds)
COPY_UNIFIED_ASYNC(cuMemcpyAsync)
COPY_UNIFIED_ASYNC(cuMemcpyAsync_ptsz)

#define FILL(name, value_type)                                                                                         \
  CUresult name(CUdeviceptr_v1 to, value_type value, unsigned int count) {                                             \
    return fill(to, &value, sizeof value, count);                                                                      \
  }                                                                                                                    \
  CUresult name##_v2(CUdeviceptr to, value_type value, size_t count) {                                                 \
    return fill(to, &value, sizeof value, count);                                                                      \
  }                                                                                                                    \
  CUresult name##_v2_ptds(CUdeviceptr to, value_type value, size_t count) {                                            \
    return fill(to, &value, sizeof value, count);                                                                      \
  }                                                                                                                    \
  CUresult name##Async(CUdeviceptr to, value_type value, size_t count, CUstream stream) {                              \
    (void)stream;                                                                                                      \
    return fill(to, &value, sizeof value, count);                                                                      \
  }                                                                                                                    \
  CUresult name##Async_ptsz(CUdeviceptr to, value_type value, size_t count, CUstream stream) {                         \
    (void)stream;                                                                                                      \
    return fill(to, &value, sizeof value, count);                                                                      \
  }

FILL(cuMemsetD8, unsigned char)
FILL(cuMemsetD16, unsigned short)
FILL(cuMemsetD32, unsigned int)
