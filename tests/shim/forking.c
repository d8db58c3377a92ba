/*
 * forking.c - forks while another thread allocates. Each child starts clean: nothing is live in it, no lock is held,
 * and it says nothing. Prints how many children ended well.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define CHILDREN 60

static PFN_cuMemAlloc_v3020 alloc;
static PFN_cuMemFree_v3020 release;
static void *driver;
static atomic_bool done;

static void *allocate(void *context) {
  CHECK_EQUAL(((PFN_cuCtxSetCurrent_v4000)dlsym(driver, "cuCtxSetCurrent"))(context), CUDA_SUCCESS);
  for (size_t bytes = 1 << 20; !done; bytes = bytes < (size_t)200 << 20 ? bytes + (1 << 20) : 1 << 20) {
    CUdeviceptr address; /* growing: a new mark, and so an event, at every other one; refused ones too */
    if (alloc(&address, bytes) == CUDA_SUCCESS)
      CHECK_EQUAL(release(address), CUDA_SUCCESS);
  }
  return NULL;
}

/* In the child: 0 if all is well. CUDA itself is of no use in it. */
static int child(void) {
  struct bsg_memory memory = {.size = sizeof memory};
  int (*ask)(int, struct bsg_memory *) = (int (*)(int, struct bsg_memory *))optional("bsg_memory");
  int64_t (*step)(int, uint64_t) = (int64_t(*)(int, uint64_t))optional("bsg_step");
  CUdeviceptr address;
  if (!ask || ask(0, &memory) == 0)
    return 1;
  if (step(0, 0) != 1)
    return 2;
  if (alloc(&address, 1 << 20) == CUDA_SUCCESS) /* the driver does not work after a fork */
    return 3;
  release(0x1000);
  return 0;
}

int main(void) {
  pthread_t thread;
  CUcontext context;
  CUdeviceptr held;
  int well = 0;

  driver = driver_open();
  alloc = (PFN_cuMemAlloc_v3020)dlsym(driver, "cuMemAlloc_v2");
  release = (PFN_cuMemFree_v3020)dlsym(driver, "cuMemFree_v2");
  CHECK_EQUAL(((PFN_cuCtxGetCurrent_v4000)dlsym(driver, "cuCtxGetCurrent"))(&context), CUDA_SUCCESS);
  CHECK_EQUAL(alloc(&held, 1 << 20), CUDA_SUCCESS);
  CHECK_EQUAL(pthread_create(&thread, NULL, allocate, context), 0);
  for (int i = 0; i < CHILDREN; i++) {
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      alarm(20); /* a lock that nobody holds any more would be waited for in vain */
      exit(child());
    }
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    if (status == 0)
      well++;
    else
      fprintf(stderr, "child %d ended with %#x\n", i, (unsigned)status);
  }
  done = true;
  pthread_join(thread, NULL);
  printf("%d\n", well);
  return well == CHILDREN ? 0 : 1;
}
