/*
 * record.h - what a wrapper does around its driver call. A wrapper is three steps: find the real entry, begin, call and
 * finish. Nothing here calls a hooked entry, and no result is invented but the refusal under a memory limit.
 */
#ifndef BSG_CUDA_RECORD_H
#define BSG_CUDA_RECORD_H

#include "hooks/cuda/hooks.h"
#include "hooks/cuda/ledger.h"
#include "shim/facts.h"

/* One driver call under way, on the wrapper's stack. */
struct bsg_call {
  enum bsg_hook_id hook;
  const void *caller; /* return address of the wrapper */
  uint64_t request_bytes;
  uint64_t charged_bytes; /* against the memory limit */
  int device;             /* -1: not asked yet */
  uint16_t context;       /* the device's, if that was asked */
  uint8_t pool;           /* of BSG_KIND_POOLED */
};

/* The return address of the wrapper that this is written in. */
#define BSG_CALLER __builtin_extract_return_addr(__builtin_return_address(0))

/*
 * Is this call ours to record? False inside another wrapper and when bsguard is off. True: bsg_record_leave() must
 * follow on every path.
 */
bool bsg_record_enter(void);
void bsg_record_leave(void);

/*
 * Before a call that allocates on the current device, or on one that its arguments name. CUDA_ERROR_OUT_OF_MEMORY: it
 * would pass the memory limit, so the driver is not to be asked.
 */
CUresult bsg_record_request(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, uint64_t bytes);
CUresult bsg_record_request_on(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, uint64_t bytes,
                               int device);

/* The same, of a pool: only what it must reserve anew counts against the limit. */
CUresult bsg_record_request_pooled(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, uint64_t bytes,
                                   CUmemoryPool pool, int device);

/* After it: `bytes` of a kind by `key` if it succeeded, else all three are ignored. */
void bsg_record_outcome(struct bsg_call *call, CUresult result, enum bsg_kind kind, uint64_t key, uint64_t bytes);

/* After a call that succeeded and gave memory of a kind that is kept apart. device -1: the current one. */
void bsg_record_apart(enum bsg_hook_id hook, enum bsg_kind kind, uint64_t key, uint64_t bytes, int device);

/* After a call that allocates without saying so, and was refused for want of memory. device -1: the current one. */
void bsg_record_unsaid(enum bsg_hook_id hook, const void *caller, int device);

/* Around a free: whether it was ours, and what was taken out. */
bool bsg_record_take(uint64_t key, struct bsg_allocation *taken);
void bsg_record_freed(const struct bsg_allocation *taken, CUresult result);

/* A free of what no hook saw allocated succeeded: somebody reaches the driver past us. */
void bsg_record_stranger(enum bsg_hook_id hook);

/* Entries left the ledger for good by themselves: of physical memory, of a context, of a pool. */
void bsg_record_gone(const struct bsg_allocation *allocation);
void bsg_record_gone_bytes(int device, uint64_t bytes);

/* What pools and graphs of a device (-1: of all whose graphs allocate) have reserved may have changed. */
void bsg_record_reserves(int device);

/* Asks about what a device reserved after its primary context was reset. */
void bsg_record_reserves_reset(int device);

/* What a device of this size shows: cuMemGetInfo's figures under the memory limit. */
void bsg_record_limit_info(int device, uint64_t *free_bytes, uint64_t *total_bytes);

/* Memory of a device as reports and adapters see it. free_bytes UINT64_MAX unless `ask` and the driver knows.
 * -ENODEV: no such device, or never used. */
int bsg_record_memory(int device, bool ask, struct bsg_memory_fact *out);

/* The largest live allocations of a device, and what its pools hold idle; returns how many. */
int bsg_record_holders(int device, struct bsg_holder_fact *out, int room);

/* All live allocations of a device summed up; those made in step `since` or later are new. -ENODEV: no such device.
 * Callers serialise. */
int bsg_record_census(int device, int64_t since, struct bsg_census_fact *out);

/* Devices used so far, as a bit set. */
uint64_t bsg_record_devices(void);

/* In the child after fork(): everything in hooks/cuda/ starts clean. */
void bsg_record_forget(void);

#endif
