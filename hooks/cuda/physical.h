/*
 * physical.h - physical memory of virtual memory management: its handles and its mappings. It goes back to the device
 * when the last of both is gone, in whatever order; then its entry is taken out of the ledger. Thread-safe.
 */
#ifndef BSG_CUDA_PHYSICAL_H
#define BSG_CUDA_PHYSICAL_H

#include <stdbool.h>
#include <stdint.h>

#include "hooks/cuda/api.h"
#include "hooks/cuda/ledger.h"

/* What a call is about to end, to be settled when its result is there. NULL: nothing that we know. */
struct bsg_ending;

/* Called for each entry that left the ledger for good. */
typedef void (*bsg_physical_gone)(const struct bsg_allocation *allocation);

/* A new piece, with one handle; returns the key to enter it by, 0 for want of memory. */
uint64_t bsg_physical_create(CUmemGenericAllocationHandle handle);

/* One more handle of a piece that is known by the same one. False: it is not. */
bool bsg_physical_retain(CUmemGenericAllocationHandle handle);

/* One more handle, of what is mapped at an address. */
void bsg_physical_retain_mapped(CUmemGenericAllocationHandle handle, uint64_t address);

void bsg_physical_map(uint64_t address, uint64_t bytes, CUmemGenericAllocationHandle handle);

/* Before a handle is released, before a range is unmapped: either may come again as soon as the driver has done it. */
struct bsg_ending *bsg_physical_release(CUmemGenericAllocationHandle handle);
struct bsg_ending *bsg_physical_unmap(uint64_t address, uint64_t bytes);

/* After it: done, or refused and everything as before. */
void bsg_physical_settle(struct bsg_ending *ending, bool done, bsg_physical_gone gone);

/* After fork(). */
void bsg_physical_forget(void);

#endif
