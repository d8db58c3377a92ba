/*
 * host.h - what hooks/cuda/ needs from whoever links it: the way to the real driver, and listeners for facts. The shim
 * defines the one `bsg_cuda_host`; a test that links hooks/cuda/ by itself defines its own. It is constant and bound at
 * link time, so it is there before any constructor runs.
 *
 * Listeners are called on the thread that made the driver call, after it, with no lock of hooks/cuda/ held. They may
 * ask ledger.h, marks.h, sites.h and driver.h; driver calls that they cause are not recorded.
 */
#ifndef BSG_CUDA_HOST_H
#define BSG_CUDA_HOST_H

#include "shim/facts.h"

struct bsg_cuda_host {
  /* False: wrappers only forward. Cheap: asked at every call. The first call starts the rest of the library. */
  bool (*active)(void);
  /*
   * Entry points by export name. `driver`: the one in libcuda itself. `next`: the one that a program would reach
   * without us, another interposer's perhaps. NULL: none.
   */
  void *(*driver_entry)(const char *symbol);
  void *(*next_entry)(const char *symbol);
  uint64_t (*memory_limit)(void); /* bytes per device; 0: none */
  struct bsg_where (*where)(void);
  bool (*waiting)(void); /* is a refused call awaiting its outcome? */
  void (*device)(const struct bsg_device_fact *fact);
  void (*refused)(const struct bsg_alloc_fact *fact);
  void (*granted)(const struct bsg_alloc_fact *fact);
  void (*mark)(const struct bsg_mark_fact *fact);
  void (*unhooked)(const char *name, int version);
};

extern const struct bsg_cuda_host bsg_cuda_host;

#endif
