/*
 * ledger.h - the table of live driver allocations, and what they sum to per device. Thread-safe, one lock, no system
 * call but to grow. All sizes in bytes. Devices are below BSG_MAX_DEVICES.
 */
#ifndef BSG_CUDA_LEDGER_H
#define BSG_CUDA_LEDGER_H

#include "shim/facts.h"

struct bsg_totals {
  uint64_t live_bytes;
  uint64_t peak_bytes;      /* high-water mark of live_bytes */
  uint64_t step_peak_bytes; /* the same since bsg_ledger_step() */
  uint64_t freed_bytes;     /* total so far */
  uint64_t live_count;
};

/*
 * Enters an allocation; *after: the device's totals with it. An entry of the same address is dropped first: its free
 * was not seen. -ENOMEM: not entered, totals unchanged.
 */
int bsg_ledger_add(const struct bsg_holder_fact *allocation, struct bsg_totals *after);

/* Takes an allocation out, before it is freed. -ENOENT: never seen. */
int bsg_ledger_take(uint64_t address, struct bsg_holder_fact *out);

/* Puts back what was taken: the free failed. Makes no new high-water mark. */
int bsg_ledger_put_back(const struct bsg_holder_fact *allocation);

/* Names the site of an allocation, if it is still live. */
void bsg_ledger_set_site(uint64_t address, uint32_t site);

void bsg_ledger_totals(int device, struct bsg_totals *out);

/* Starts step_peak_bytes afresh. */
void bsg_ledger_step(int device);

/* The largest live allocations of a device (-1: of all), largest first; returns how many. */
int bsg_ledger_largest(int device, struct bsg_holder_fact *out, int room);

/* Allocations that were not entered, for want of memory. */
uint64_t bsg_ledger_missed(void);

/* In the child after fork(): empty, with a fresh lock, whatever another thread was doing in the parent. */
void bsg_ledger_forget(void);

#endif
