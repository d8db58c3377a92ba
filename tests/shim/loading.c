/*
 * loading.c - one thread is in dlopen(), in a constructor that asks for memory (loaded.c), while the main thread runs
 * out of it and has a report written. Neither may wait for the other. Prints how many reports were asked for.
 *
 *   loading LIBRARY
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "driver.h"

BSG_EXPORT atomic_int loading;

static CUcontext context;
static void *driver;

static void *load(void *path) {
  CHECK_EQUAL(((PFN_cuCtxSetCurrent_v4000)dlsym(driver, "cuCtxSetCurrent"))(context), CUDA_SUCCESS);
  CHECK(dlopen(path, RTLD_NOW));
  return NULL;
}

int main(int argc, char **argv) {
  int (*terminal)(const struct bsg_oom *, struct bsg_decision *);
  int (*unrescued)(int, int, const char *);
  PFN_cuMemAlloc_v3020 alloc;
  CUdeviceptr address;
  pthread_t thread;
  int reports = 0;

  CHECK(argc > 1);
  driver = driver_open();
  alloc = (PFN_cuMemAlloc_v3020)dlsym(driver, "cuMemAlloc_v2");
  terminal = (int (*)(const struct bsg_oom *, struct bsg_decision *))optional("bsg_terminal");
  unrescued = (int (*)(int, int, const char *))optional("bsg_unrescued");
  CHECK_EQUAL(((PFN_cuCtxGetCurrent_v4000)dlsym(driver, "cuCtxGetCurrent"))(&context), CUDA_SUCCESS);
  CHECK_EQUAL(alloc(&address, 1 << 20), CUDA_SUCCESS);
  atomic_store(&loading, 1);
  CHECK_EQUAL(pthread_create(&thread, NULL, load, argv[1]), 0);
  while (atomic_load(&loading) != 2)
    usleep(1000);
  for (int i = 0; i < 20; i++) {
    struct bsg_oom oom = {
        .size = sizeof oom, .phase = BSG_PHASE_FORWARD, .boundary = "b", .signature = "s", .batch = 1};
    struct bsg_decision decision = {.size = sizeof decision};
    CHECK_EQUAL(alloc(&address, (size_t)4 << 30), CUDA_ERROR_OUT_OF_MEMORY);
    if (terminal && terminal(&oom, &decision) == 0 && unrescued(0, BSG_PHASE_FORWARD, "out of memory") == 0)
      reports++;
  }
  atomic_store(&loading, 3);
  pthread_join(thread, NULL);
  printf("%d\n", reports);
  return 0;
}
