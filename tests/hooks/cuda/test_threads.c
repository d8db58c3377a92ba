/*
 * Threads allocate and free at random, a third of the calls fail, some allocations are freed by another thread; at the
 * end the ledger and the driver agree to the byte. Meant for ThreadSanitizer as well.
 */
#include <stdatomic.h>

#include "fake.h"
#include "hooks/cuda/ledger.h"
#include "hooks/cuda/sites.h"
#include "shim/bsguard.h"
#include "tests/shim/check.h"

#define THREADS 4
#define CALLS 20000
#define HELD 64
#define MIB ((uint64_t)1 << 20)

/* Where threads leave allocations for one another. */
static _Atomic CUdeviceptr shared[HELD];
static atomic_int failures;

static uint64_t next(uint64_t *random) {
  *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
  return *random;
}

static CUresult allocate(uint64_t *random, CUdeviceptr *address) {
  size_t pitch, bytes = next(random) % (3 * MIB) + 1;
  switch (next(random) % 3) {
  case 0:
    return cuMemAlloc_v2(address, bytes);
  case 1:
    return cuMemAllocManaged(address, bytes, 1);
  default:
    return cuMemAllocPitch_v2(address, &pitch, bytes / 100 + 1, 100, 4);
  }
}

static void *work(void *argument) {
  uint64_t random = (uint64_t)(uintptr_t)argument * 0x9E3779B97F4A7C15u;
  for (int i = 0; i < CALLS; i++) {
    CUdeviceptr address = 0, other;
    _Atomic CUdeviceptr *place = &shared[next(&random) % HELD];
    if (i % 1000 == 0) {
      size_t bytes_free, bytes_total;
      struct bsg_allocation holders[4];
      CHECK_EQUAL(cuMemGetInfo_v2(&bytes_free, &bytes_total), CUDA_SUCCESS);
      bsg_ledger_largest(0, holders, 4);
      bsg_ledger_step(0);
    }
    if (allocate(&random, &address) != CUDA_SUCCESS) {
      CHECK_EQUAL(address, 0);
      atomic_fetch_add(&failures, 1);
      continue;
    }
    other = atomic_exchange(place, address);
    if (other && next(&random) % 8 == 0 && cuMemFree_v2(other + 1) == CUDA_SUCCESS) /* not what was given */
      CHECK(!"a free of nothing succeeded");
    if (other)
      CHECK_EQUAL(cuMemFree_v2(other), CUDA_SUCCESS);
  }
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS];
  struct bsg_totals totals;
  CUdeviceptr address;
  (void)argv;

  bsg_sites_prepare();
  fake.capacity = 60 * MIB; /* about two thirds of what 64 places would hold */
  if (argc > 1)
    fake.limit = 50 * MIB;
  fake.waiting = true;
  for (int i = 0; i < THREADS; i++)
    CHECK_EQUAL(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)), 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);

  bsg_ledger_totals(0, &totals);
  printf("%d of %d calls failed, peak %" PRIu64 "\n", failures, THREADS * CALLS, fake.used_peak);
  CHECK(failures > THREADS * CALLS / 20);
  CHECK_EQUAL(totals.live_bytes, fake.used);
  CHECK_EQUAL(fake.refusals, failures);
  CHECK_EQUAL(fake.grants, THREADS * CALLS - failures);
  /* The ledger takes an entry out before the driver frees it, so it never counts more than the driver does. */
  CHECK(totals.peak_bytes <= fake.used_peak);
  CHECK(fake.limit == 0 || fake.used_peak <= fake.limit + 64 * 1024 * THREADS); /* a pitch is known afterwards */
  CHECK_EQUAL(fake.devices, 1);
  for (int i = 0; i < HELD; i++)
    if ((address = shared[i]))
      CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
  bsg_ledger_totals(0, &totals);
  CHECK_EQUAL(totals.live_bytes, 0);
  CHECK_EQUAL(totals.live_count, 0);
  CHECK_EQUAL(fake.used, 0);
  return 0;
}
