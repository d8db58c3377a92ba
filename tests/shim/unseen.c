/*
 * unseen.c - reaches the driver in ways that a preload does not see, and does a little that it sees.
 *
 *   unseen deepbind LIBRARY   libdeep.so allocates, past us
 *   unseen stranger LIBRARY   the same, and what it allocated is freed before our eyes
 *   unseen dlmopen            a driver in a namespace of its own allocates
 *   unseen plain LIBRARY      libdeep.so, opened as usual: seen
 */
#include <string.h>

#include "driver.h"

#define MIB ((size_t)1 << 20)

static void *open_deep(const char *path, int flags) {
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | flags) : NULL;
  CHECK(library);
  return dlsym(library, "deep_alloc");
}

static void elsewhere(void) {
  void *driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
  CUcontext context;
  CUdeviceptr address;
  CHECK(driver);
  CHECK_EQUAL(((PFN_cuInit_v2000)dlsym(driver, "cuInit"))(0), CUDA_SUCCESS);
  CHECK_EQUAL(((PFN_cuDevicePrimaryCtxRetain_v7000)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0),
              CUDA_SUCCESS);
  CHECK_EQUAL(((PFN_cuCtxSetCurrent_v4000)dlsym(driver, "cuCtxSetCurrent"))(context), CUDA_SUCCESS);
  CHECK_EQUAL(((PFN_cuMemAlloc_v3020)dlsym(driver, "cuMemAlloc_v2"))(&address, 5 * MIB), CUDA_SUCCESS);
}

int main(int argc, char **argv) {
  const char *way = argc > 1 ? argv[1] : "", *path = argc > 2 ? argv[2] : NULL;
  void *driver = driver_open();
  PFN_cuMemAlloc_v3020 alloc = (PFN_cuMemAlloc_v3020)dlsym(driver, "cuMemAlloc_v2");
  PFN_cuMemFree_v3020 release = (PFN_cuMemFree_v3020)dlsym(driver, "cuMemFree_v2");
  int (*deep)(CUdeviceptr *, size_t);
  CUdeviceptr seen, unseen = 0;
  struct bsg_memory memory;

  CHECK_EQUAL(alloc(&seen, MIB), CUDA_SUCCESS);
  if (strcmp(way, "dlmopen") == 0)
    elsewhere();
  else {
    deep = (int (*)(CUdeviceptr *, size_t))open_deep(path, strcmp(way, "plain") == 0 ? 0 : RTLD_DEEPBIND);
    CHECK_EQUAL(deep(&unseen, 5 * MIB), CUDA_SUCCESS);
  }
  memory = guarded_memory();
  printf("{\"seen\": %llu, \"free\": %llu, \"total\": %llu}\n", (unsigned long long)memory.live_bytes,
         (unsigned long long)memory.free_bytes, (unsigned long long)memory.total_bytes);
  if (strcmp(way, "stranger") == 0)
    CHECK_EQUAL(release(unseen), CUDA_SUCCESS);
  CHECK_EQUAL(alloc(&unseen, 4096 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(alloc(&unseen, MIB), CUDA_SUCCESS);
  return 0;
}
