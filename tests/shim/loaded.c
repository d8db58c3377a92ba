/*
 * loaded.c - a library whose constructor allocates, and is refused, until the program says that it is enough: all this
 * time its thread holds the loader's lock.
 */
#include <stdatomic.h>

#include "driver.h"

extern atomic_int loading; /* of the program. 1: begin; 2: begun; 3: enough */

__attribute__((constructor)) static void enter(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  PFN_cuMemAlloc_v3020 alloc = (PFN_cuMemAlloc_v3020)dlsym(driver, "cuMemAlloc_v2");
  PFN_cuMemFree_v3020 release = (PFN_cuMemFree_v3020)dlsym(driver, "cuMemFree_v2");
  int begin = 1;
  atomic_compare_exchange_strong(&loading, &begin, 2);
  for (size_t i = 0; atomic_load(&loading) != 3; i++) {
    CUdeviceptr address;
    if (alloc(&address, (i % 100) << 20 | 512) == CUDA_SUCCESS)
      release(address);
  }
}
