/* clock.c - see clock.h. Depends on clock_gettime() alone. */
#include "shim/clock.h"

#include <time.h>

struct bsg_when bsg_clock_now(void) {
  struct timespec mono, real;
  clock_gettime(CLOCK_MONOTONIC, &mono);
  clock_gettime(CLOCK_REALTIME, &real);
  return (struct bsg_when){.mono_ns = (int64_t)mono.tv_sec * 1000000000 + mono.tv_nsec,
                           .unix_ms = (int64_t)real.tv_sec * 1000 + real.tv_nsec / 1000000};
}
