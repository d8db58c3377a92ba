/* deep.c - a library that is linked with the driver. Opened with RTLD_DEEPBIND, it finds the driver before it finds us.
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include "shim/bsguard.h"

BSG_EXPORT int deep_alloc(CUdeviceptr_v2 *address, size_t bytes);
BSG_EXPORT int deep_alloc(CUdeviceptr_v2 *address, size_t bytes) {
  return cuMemAlloc_v2(address, bytes);
}
