/*
 * fake.h - a driver and a host for tests that link hooks/cuda/ by itself. The driver hands out addresses, keeps its own
 * books and fails when told; the host counts what it is told. Thread-safe but for the settings.
 */
#ifndef BSG_TESTS_FAKE_H
#define BSG_TESTS_FAKE_H

#include <pthread.h>

#include "hooks/cuda/api.h"
#include "hooks/cuda/host.h"

struct fake {
  /* Settings. */
  bool present;                       /* is there a driver? */
  bool off;                           /* BSGUARD=0 */
  uint64_t limit;                     /* BSGUARD_MEMORY_LIMIT */
  uint64_t capacity;                  /* bytes of a device */
  bool waiting;                       /* what the host answers */
  CUresult next_alloc;                /* of the next allocation; then reset. CUDA_SUCCESS: as usual */
  CUresult next_free;                 /* of the next free */
  bool fixed_address;                 /* every allocation gets one address */
  void *(*entry)(const char *symbol); /* replaces the look-up of entries; NULL: as usual */
  struct bsg_where where;

  /* What was seen. */
  pthread_mutex_t lock;
  uint64_t used, used_peak; /* as the driver knows it */
  int allocs, frees;        /* calls that reached the driver */
  CUdeviceptr last_free;
  int devices, refusals, grants, marks, unhooked;
  struct bsg_device_fact last_device;
  struct bsg_alloc_fact last_refused, last_granted;
  struct bsg_mark_fact last_mark;
  int last_unhooked_version;
};

extern struct fake fake;

/* The calling thread's current device, as cuCtxGetDevice says it. */
extern __thread int fake_device;

/* The driver's own entry of an export. */
void *fake_entry(const char *symbol);

#endif
