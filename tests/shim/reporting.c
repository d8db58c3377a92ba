/*
 * reporting.c - a job with many live allocations that runs out of memory where the heap gives nothing any more either:
 * how long does the refused call take, how long the report, and did anybody ask the heap? Prints one line of JSON.
 *   reporting COUNT   (of live allocations)
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "driver.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);

static atomic_bool refusing;
static atomic_int asked;

/* True where the heap is to give nothing. */
static bool refused(void) {
  if (!atomic_load(&refusing))
    return false;
  atomic_fetch_add(&asked, 1);
  errno = ENOMEM;
  return true;
}

BSG_EXPORT void *malloc(size_t bytes) {
  return refused() ? NULL : __libc_malloc(bytes);
}

BSG_EXPORT void *calloc(size_t count, size_t bytes) {
  return refused() ? NULL : __libc_calloc(count, bytes);
}

BSG_EXPORT void *realloc(void *memory, size_t bytes) {
  return refused() ? NULL : __libc_realloc(memory, bytes);
}

/* Of processor time: another process of a busy machine must not count. */
static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
  int count = argc > 1 ? atoi(argv[1]) : 1000;
  void *driver = driver_open();
  PFN_cuMemAlloc_v3020 alloc = (PFN_cuMemAlloc_v3020)dlsym(driver, "cuMemAlloc_v2");
  int (*unrescued)(int, int, const char *) = (int (*)(int, int, const char *))optional("bsg_unrescued");
  int (*attach)(const char *, const char *) = (int (*)(const char *, const char *))optional("bsg_attach");
  double best_refused = 1e9, best_report = 1e9, before;
  CUdeviceptr held;

  CHECK(attach && unrescued);
  attach("loop 1", NULL);
  for (int i = 0; i < count; i++)
    CHECK_EQUAL(alloc(&held, 512), CUDA_SUCCESS);
  for (int round = 0; round < 3; round++) {
    CUresult result;
    atomic_store(&refusing, true);
    before = milliseconds();
    result = alloc(&held, (size_t)1 << 40);
    best_refused = milliseconds() - before < best_refused ? milliseconds() - before : best_refused;
    before = milliseconds();
    CHECK_EQUAL(unrescued(0, BSG_PHASE_FORWARD, "out of memory"), 0);
    best_report = milliseconds() - before < best_report ? milliseconds() - before : best_report;
    atomic_store(&refusing, false);
    CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
  }
  printf("{\"allocations\": %d, \"refused_ms\": %.2f, \"report_ms\": %.2f, \"heap\": %d}\n", count, best_refused,
         best_report, atomic_load(&asked));
  return 0;
}
