/*
 * ledger.h - the table of live driver allocations, and what they sum to per device and kind. Thread-safe, one lock, no
 * system call but to grow. All sizes in bytes. Devices are below BSG_MAX_DEVICES.
 */
#ifndef BSG_CUDA_LEDGER_H
#define BSG_CUDA_LEDGER_H

#include "shim/facts.h"

/* Pools are known by a small number; 0: none. */
#define BSG_MAX_POOLS 256

/*
 * An entry. What is not known by a device address (arrays, physical memory, host memory) has its handle's value
 * instead, marked by BSG_KEY in the highest bits, which no address has.
 */
struct bsg_allocation {
  uint64_t key; /* never 0 */
  uint64_t bytes;
  uint32_t step; /* of where it was made; UINT32_MAX: that or later */
  uint16_t site;
  uint16_t context; /* of contexts.h; 0: of none */
  uint8_t api;      /* enum bsg_hook_id */
  uint8_t device;
  uint8_t pool;
  uint8_t kind : 4, /* enum bsg_kind, but not BSG_KIND_POOL or BSG_KIND_GRAPH */
      phase : 4;
  uint32_t spilled; /* the ledger's own */
};

#define BSG_KEY(kind, handle) ((uint64_t)(uintptr_t)(handle) | (uint64_t)((kind) + 1) << 60)

struct bsg_totals {
  uint64_t live_bytes;      /* of the kinds before BSG_KIND_APART */
  uint64_t peak_bytes;      /* high-water mark of live_bytes */
  uint64_t step_peak_bytes; /* the same since bsg_ledger_step() */
  uint64_t freed_bytes;     /* total so far, of the same kinds */
  uint64_t live_count;      /* entries, but those of BSG_KIND_MAPPED and BSG_KIND_PINNED */
};

/* A call for this key is to come: fetches what it will need into the cache. Without the lock; harmless if none comes.
 */
void bsg_ledger_expect(uint64_t key);

/*
 * Enters an allocation; *after: the device's totals with it. An entry of the same key is dropped first: its free was
 * not seen. -ENOMEM: not entered, totals unchanged.
 */
int bsg_ledger_add(const struct bsg_allocation *allocation, struct bsg_totals *after);

/* Takes an allocation out, before it is freed. -ENOENT: never seen. */
int bsg_ledger_take(uint64_t key, struct bsg_allocation *out);

/* Puts back what was taken: the free failed. Makes no new high-water mark. */
int bsg_ledger_put_back(const struct bsg_allocation *allocation);

/* Names the site of an allocation, if it is still live. */
void bsg_ledger_set_site(uint64_t key, uint32_t site);

/* Drops all entries of a context: it was destroyed. bytes[device]: what was freed there of the kinds that count. */
void bsg_ledger_drop_context(uint16_t context, uint64_t bytes[BSG_MAX_DEVICES]);

/* Drops all entries of a pool. */
void bsg_ledger_drop_pool(uint8_t pool);

/*
 * Sets what BSG_KIND_POOL or BSG_KIND_GRAPH hold of a device; *after: the totals with it. Returns what they held
 * before.
 */
uint64_t bsg_ledger_reserve(int device, enum bsg_kind kind, uint64_t bytes, struct bsg_totals *after);

/* Live bytes that a pool has handed out. */
uint64_t bsg_ledger_pooled(uint8_t pool);

void bsg_ledger_totals(int device, struct bsg_totals *out);
void bsg_ledger_kinds(int device, uint64_t bytes[BSG_KIND_COUNT]);

/* Starts step_peak_bytes afresh. */
void bsg_ledger_step(int device);

/* The largest live allocations of a device (-1: of all) in its own memory, largest first; returns how many. */
int bsg_ledger_largest(int device, struct bsg_allocation *out, int room);

/* Shows each live allocation of a device that is of its own memory. `visit` holds the ledger's lock: it must call
 * nothing. */
void bsg_ledger_each(int device, void (*visit)(const struct bsg_allocation *allocation, void *context), void *context);

/* Allocations that were not entered, for want of memory. */
uint64_t bsg_ledger_missed(void);

/* In the child after fork(): empty, with a fresh lock, whatever another thread was doing in the parent. */
void bsg_ledger_forget(void);

#endif
