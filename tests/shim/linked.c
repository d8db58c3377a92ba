/*
 * linked.c - a program, or (BSG_EARLY) a library whose constructor does it, that was linked with -lcuda: plain symbols.
 * Prints what bsguard saw of one allocation, as JSON.
 */
#include "driver.h"
#include "tests/simgpu/driver/simgpu.h"

#define BYTES ((size_t)3 << 20)

static void run(void) {
  CUdeviceptr address;
  CUcontext context;
  struct bsg_memory during, after;
  uint64_t driver_during;

  CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
  CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&address, BYTES), CUDA_SUCCESS);
  during = guarded_memory();
  driver_during = simgpu_used(0);
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
  after = guarded_memory();
  printf("{\"seen\": %llu, \"driver\": %llu, \"left\": %llu, \"peak\": %llu, \"driver_left\": %llu}\n",
         (unsigned long long)during.live_bytes, (unsigned long long)driver_during, (unsigned long long)after.live_bytes,
         (unsigned long long)after.peak_bytes, (unsigned long long)simgpu_used(0));
}

#ifdef BSG_EARLY
BSG_EXPORT void early_is_needed(void);
BSG_EXPORT void early_is_needed(void) {}
__attribute__((constructor)) static void enter(void) {
  run();
}
#else
int main(void) {
  run();
  return 0;
}
#endif
