/*
 * simulated.h - a host for tests that link hooks/cuda/ by itself and run it on the simulated driver: counts what it is
 * told. Thread-safe but for the settings.
 */
#ifndef BSG_TESTS_SIMULATED_H
#define BSG_TESTS_SIMULATED_H

#include <stdatomic.h>

#include "hooks/cuda/host.h"
#include "tests/simgpu/driver/simgpu.h"

struct simulated {
  uint64_t limit; /* BSGUARD_MEMORY_LIMIT; a setting */

  atomic_int refusals, grants, marks, unhooked;
  struct bsg_alloc_fact last_refused; /* of the last thread that was */
};

extern struct simulated simulated;

/* The driver's own entry of an export. */
void *simulated_entry(const char *symbol);

#endif
