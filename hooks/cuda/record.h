/*
 * record.h - what a wrapper does around its driver call. A wrapper is three steps: find the real entry, begin, call and
 * finish. Nothing here calls a hooked entry, and no result is invented but the refusal under a memory limit.
 */
#ifndef BSG_CUDA_RECORD_H
#define BSG_CUDA_RECORD_H

#include "hooks/cuda/hooks.h"
#include "shim/facts.h"

/* One driver call under way, on the wrapper's stack. */
struct bsg_call {
  enum bsg_hook_id hook;
  const void *caller; /* return address of the wrapper */
  uint64_t request_bytes;
  uint64_t charged_bytes; /* against the memory limit */
  int device;             /* -1: not asked yet */
};

/* The return address of the wrapper that this is written in. */
#define BSG_CALLER __builtin_extract_return_addr(__builtin_return_address(0))

/*
 * Is this call ours to record? False inside another wrapper and when bsguard is off. True: bsg_record_leave() must
 * follow on every path.
 */
bool bsg_record_enter(void);
void bsg_record_leave(void);

/* Before an allocation. CUDA_ERROR_OUT_OF_MEMORY: it would pass the memory limit, so the driver is not to be asked. */
CUresult bsg_record_request(struct bsg_call *call, enum bsg_hook_id hook, const void *caller, uint64_t bytes);

/* After it: `bytes` at `address` if it succeeded, else both are ignored. */
void bsg_record_outcome(struct bsg_call *call, CUresult result, uint64_t address, uint64_t bytes);

/* Around a free: whether it was ours, and what was taken out. */
bool bsg_record_take(uint64_t address, struct bsg_holder_fact *taken);
void bsg_record_freed(const struct bsg_holder_fact *taken, CUresult result);

/* What a device of this size shows: cuMemGetInfo's figures under the memory limit. */
void bsg_record_limit_info(int device, uint64_t *free_bytes, uint64_t *total_bytes);

/* Memory of a device as reports and adapters see it. free_bytes UINT64_MAX unless `ask` and the driver knows.
 * -ENODEV: no such device, or never used. */
int bsg_record_memory(int device, bool ask, struct bsg_memory_fact *out);

/* Devices used so far, as a bit set. */
uint64_t bsg_record_devices(void);

/* In the child after fork(): everything in hooks/cuda/ starts clean. */
void bsg_record_forget(void);

#endif
