/*
 * driver.h - how the test programs reach the driver: entries looked up in one of the ways that real programs use. The
 * program has a context on device 0 from the first look-up on. Needs libcuda.so.1 on the library path.
 */
#ifndef BSG_TESTS_DRIVER_H
#define BSG_TESTS_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <stdint.h>

#include "shim/bsguard.h"
#include "tests/shim/check.h"

/* libcuda's handle, with a context made. */
static inline void *driver_open(void) {
  void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CUcontext context;
  CHECK(handle);
  CHECK_EQUAL(((PFN_cuInit_v2000)dlsym(handle, "cuInit"))(0), CUDA_SUCCESS);
  CHECK_EQUAL(((PFN_cuDevicePrimaryCtxRetain_v7000)dlsym(handle, "cuDevicePrimaryCtxRetain"))(&context, 0),
              CUDA_SUCCESS);
  CHECK_EQUAL(((PFN_cuCtxSetCurrent_v4000)dlsym(handle, "cuCtxSetCurrent"))(context), CUDA_SUCCESS);
  return handle;
}

/* A function of the driver's tests (simgpu.h), or of bsguard; NULL where there is none. */
static inline void *optional(const char *name) {
  return dlsym(RTLD_DEFAULT, name);
}

/* What bsguard knows of device 0; all zero where it is not loaded or nothing was allocated. */
static inline struct bsg_memory guarded_memory(void) {
  struct bsg_memory memory = {.size = sizeof memory};
  int (*ask)(int, struct bsg_memory *) = (int (*)(int, struct bsg_memory *))optional("bsg_memory");
  if (ask)
    ask(0, &memory);
  return memory;
}

#endif
