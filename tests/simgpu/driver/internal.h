/*
 * internal.h - what the files of the simulated driver share. Names: cu* and simgpu_* are exported, sim_* are not.
 *
 * No entry point calls another one: a preloaded library that exports the same name would see calls that the program
 * never made, which NVIDIA's driver does not do to it either.
 */
#ifndef SIM_INTERNAL_H
#define SIM_INTERNAL_H

/* Declares every version of every entry point under its true name, so that the compiler checks ours. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "simgpu.h"

#define SIM_MAX_DEVICES 16
#define SIM_MAX_RANGES 32

/* ---- config.c ---- */
struct sim_range {
  uint64_t first, count; /* allocation calls, counted from 1 */
};

struct sim_config {
  int devices;
  uint64_t memory, granularity, pool_chunk;             /* bytes */
  uint64_t context_memory, module_memory, queue_memory; /* bytes */
  int driver_version;
  struct sim_range fail_at[SIM_MAX_RANGES];
  int fail_at_count;
  uint64_t fail_every, fail_size;
  bool fail_all; /* every call that may run out of memory counts as an allocation call */
  bool protect, poison, stats;
  const char *log, *refusals, *shared; /* file names or NULL */
};

/* The options of this process, read at the first call. */
const struct sim_config *sim_config(void);

/* ---- built.c ---- */
extern const int sim_built_version; /* e.g. 12040 */

static inline bool sim_known_device(int device) {
  return device >= 0 && device < sim_config()->devices;
}

/* ---- context.c ---- */
struct CUctx_st {
  uint32_t id;
  int device;
  bool primary;
  atomic_bool alive;
  unsigned flags;
  unsigned attached; /* times that cuCtxAttach() came, and 1 */
  CUcontext owner;   /* whose end is the end of what is allocated under this one: itself, or a primary context */
  struct CUctx_st *next;
};

/* CUDA_SUCCESS once cuInit() was called in this very process; a forked child is never ready again, as with NVIDIA's
 * driver. */
CUresult sim_ready(void);
/* The same for a call that names a device: CUDA_ERROR_INVALID_DEVICE for an unknown one. */
CUresult sim_ready_on(int device);

/* ---- context_thread.c ---- */
/* The owner of what is allocated under the calling thread's context; CUDA_ERROR_INVALID_CONTEXT without one,
 * CUDA_ERROR_CONTEXT_IS_DESTROYED. */
CUresult sim_current(CUcontext *out);

/* ---- context_primary.c ---- */
/* A context that holds the primary one of a device and is a name for it. */
CUresult sim_context_borrow(int device, CUcontext *out);
/* Ends it. Caller holds sim_lock(). */
void sim_context_hand_back(CUcontext context);

/* ---- space.c: addresses and the host memory behind them. Callers hold sim_lock(). ---- */
enum sim_pool {
  SIM_POOL_DEVICE = 0,
  SIM_POOL_MANAGED, /* readable by the host even when device memory is not */
  SIM_POOL_LOW,     /* addresses below 4 GiB, for the 32-bit entry points */
  SIM_POOLS
};

struct sim_block {
  uint64_t bytes;     /* requested; 0: the slot is free */
  CUcontext context;  /* whose end is the block's end; NULL: none */
  void *owner;        /* what pool.c, graph_memory.c or foreign.c know of it, according to its kind */
  uint32_t next_free; /* slot index + 1 */
  uint8_t device, pool, kind;
  bool absent; /* an address without memory */
};

struct sim_place {
  struct sim_block *block;
  uint64_t base; /* device address of the block */
  char *host;    /* readable and writable address of the byte that was looked up */
};

int sim_space_take(int device, enum sim_pool pool, uint64_t bytes, struct sim_place *out);
bool sim_space_find(uint64_t address, struct sim_place *out);
void sim_space_give(const struct sim_place *place);
/* Calls visit for every live block of a device; visit may give that block back. */
void sim_space_each(int device, void (*visit)(const struct sim_place *place, void *arg), void *arg);

/* ---- capacity.c: what a device has and has lost, by kind. Callers hold sim_lock(). ---- */
/* One more block of a kind; false when the device has not that much left. */
bool sim_capacity_charge(int device, enum simgpu_kind kind, uint64_t bytes);
void sim_capacity_refund(int device, enum simgpu_kind kind, uint64_t bytes);
/* The same in two halves, for those who reserve before they hand out. Bytes of the first are multiples of the
 * granularity. */
bool sim_capacity_take(int device, enum simgpu_kind kind, uint64_t bytes);
void sim_capacity_return(int device, enum simgpu_kind kind, uint64_t bytes);
void sim_capacity_hand_out(int device, enum simgpu_kind kind, uint64_t bytes);
void sim_capacity_hand_in(int device, enum simgpu_kind kind, uint64_t bytes);
uint64_t sim_capacity_total(int device);
uint64_t sim_capacity_used(int device);
uint64_t sim_capacity_left(int device);
uint64_t sim_capacity_peak(int device, bool reset);
uint64_t sim_capacity_live(int device);
uint64_t sim_capacity_used_by(int device, enum simgpu_kind kind);
uint64_t sim_capacity_requested_by(int device, enum simgpu_kind kind);
uint64_t sim_capacity_live_by(int device, enum simgpu_kind kind);
void sim_capacity_set(int device, uint64_t bytes);

/* ---- shared.c: what other processes use. Callers hold sim_lock(). ---- */
/* Between these two no other process takes anything. */
void sim_shared_enter(void);
void sim_shared_leave(void);
/* Tells the others what this process uses. */
void sim_shared_publish(int device, uint64_t used);
/* What other live processes use. */
uint64_t sim_shared_others(int device);

/* ---- reserve.c: memory that is taken from a device in chunks and handed out in pieces. Callers hold sim_lock(). ----
 */
struct sim_reserve {
  int device;
  enum simgpu_kind kind;
  uint64_t reserved, reserved_high;
  uint64_t used, used_high; /* in pieces of 512 */
};

/* What a request takes of it. */
uint64_t sim_reserve_piece(uint64_t bytes);
/* Sees to it that so many bytes more can be used; false when the device has not what is missing. */
bool sim_reserve_grow(struct sim_reserve *reserve, uint64_t bytes);
bool sim_reserve_use(struct sim_reserve *reserve, uint64_t bytes);
void sim_reserve_put_back(struct sim_reserve *reserve, uint64_t bytes);
/* Gives the device back what is not in use, but keeps at least `keep` bytes reserved if so many are. */
void sim_reserve_trim(struct sim_reserve *reserve, uint64_t keep);

/* ---- faults.c. Callers hold sim_lock(). ---- */
enum sim_call {
  SIM_CALL_MEMORY, /* asks for device memory */
  SIM_CALL_OTHER   /* may run out of memory all the same; counted with SIMGPU_FAIL_CALLS=all only */
};

/* Counts an allocation call; true when it is to fail. */
bool sim_fault_due(enum sim_call call, uint64_t bytes);
void sim_fault_all(bool all);
void sim_fault_refused(void);
uint64_t sim_fault_calls(void);
uint64_t sim_fault_refusals(void);
void sim_fault_at(uint64_t n_from_now, uint64_t count);
void sim_fault_every(uint64_t n);
void sim_fault_size(uint64_t bytes);

/* ---- journal.c ---- */
/* Ends an allocation call: with a cause it was refused. Caller holds sim_lock(). */
void sim_journal_alloc(int device, enum simgpu_kind kind, uint64_t bytes, uint64_t address, const char *cause);
/* After a block was given back. Caller holds sim_lock(). */
void sim_journal_free(int device, enum simgpu_kind kind, uint64_t bytes, uint64_t address);

/* ---- memory.c ---- */
/* Frees everything that a context allocated. Caller holds sim_lock(). */
void sim_memory_drop(CUcontext context);
/* cuMemFree() of an address that is not 0. */
CUresult sim_memory_free(uint64_t address);

/* ---- pool.c. Callers hold sim_lock(). ---- */
/* Takes a block of a memory pool back. */
void sim_pool_release(const struct sim_place *place);
/* What a synchronisation does: pools give back what is unused beyond their release threshold. */
void sim_pool_settle(int device);
/* Frees everything that the pools of a device hold, in use or not. */
void sim_pool_drop(int device);

/* ---- foreign.c. Callers hold sim_lock(). ---- */
/* Unmaps memory of somebody else. */
void sim_foreign_release(const struct sim_place *place);

/* ---- vmm_mapping.c. Callers hold sim_lock(). ---- */
/* Where the host reaches bytes of mapped and accessible memory; NULL unless all of them are. */
char *sim_vmm_reach(uint64_t address, uint64_t bytes);
/* The mapping that an address lies in. */
bool sim_vmm_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device);

/* ---- array_size.c. Both give false for a description that makes no sense or no size. ---- */
bool sim_array_level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned level, uint64_t *out);
/* Of all levels together. */
bool sim_array_mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels, uint64_t *out);

/* ---- array.c ---- */
/* Frees the arrays of a context. Caller holds sim_lock(). */
void sim_array_drop(CUcontext context);
/* A mipmapped array in memory of somebody else. */
CUresult sim_array_map(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels);

/* ---- pinned.c ---- */
/* The piece of host-pinned memory that an address lies in. */
bool sim_pinned_find(const void *pointer, void **base, size_t *bytes);
/* Frees what a context allocated and forgets what it registered. Caller holds sim_lock(). */
void sim_pinned_drop(CUcontext context);

/* ---- stream.c ---- */
struct CUstream_st {
  CUstream next;
  CUcontext context;
  struct sim_capture *capture; /* NULL: none */
  unsigned flags;
  int priority;
};

CUresult sim_stream_create(CUstream *out, CUcontext context, unsigned flags, int priority);
/* CUDA_SUCCESS for a live stream and a thread with a context, which is put out. */
CUresult sim_stream_check(CUstream stream, CUcontext *context);
bool sim_stream_is_standard(CUstream stream);
/* The capture that a live stream takes part in; NULL: none. Caller holds sim_lock(). */
struct sim_capture *sim_stream_capture(CUstream stream);
/* Takes all streams and events out of a capture. Caller holds sim_lock(). */
void sim_stream_uncapture(const struct sim_capture *capture);
/* Ends the streams and events of a context. Caller holds sim_lock(). */
void sim_stream_drop(CUcontext context);

/* ---- capture.c. Callers hold sim_lock(). ---- */
/* Whether a capture forbids the calling thread a call that might wait for the device; it is spoilt then. */
bool sim_capture_forbids(void);
CUresult sim_capture_alloc(struct sim_capture *capture, int device, uint64_t bytes, CUdeviceptr *out);
CUresult sim_capture_free(struct sim_capture *capture, CUdeviceptr address);
bool sim_capture_begun_on(const struct sim_capture *capture, CUstream stream);
void sim_capture_abandon(struct sim_capture *capture);

/* ---- graph.c. Callers hold sim_lock(). ---- */
CUgraph sim_graph_new(void);
bool sim_graph_known(CUgraph graph);
void sim_graph_delete(CUgraph graph);
CUresult sim_graph_add_alloc(CUgraph graph, int device, uint64_t bytes, CUdeviceptr *out, CUgraphNode *node);
CUresult sim_graph_add_free(CUgraph graph, CUdeviceptr address, CUgraphNode *node);

/* ---- graph_memory.c. Callers hold sim_lock(). ---- */
/* Frees memory that a launch left allocated. */
void sim_graph_release(const struct sim_place *place);
/* Frees everything that graphs hold on a device, in use or not. */
void sim_graph_drop(int device);

/* ---- overhead.c: what the driver takes for itself. Callers hold sim_lock(). ---- */
/* CUDA_ERROR_OUT_OF_MEMORY where there is no room for another one of a kind (SIMGPU_CONTEXT, _MODULE, _QUEUE). */
CUresult sim_overhead_take(int device, enum simgpu_kind kind);
void sim_overhead_return(int device, enum simgpu_kind kind);

/* ---- module.c ---- */
/* Unloads the modules of a context. Caller holds sim_lock(). */
void sim_module_drop(CUcontext context);

/* ---- lock.c ---- */
void sim_lock(void);
void sim_unlock(void);
/* True in a child that was forked after its parent's cuInit(). */
bool sim_forked(void);
/* From cuInit() on, a forked child counts as such. */
void sim_fork_matters(void);

static inline uint64_t sim_round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

#endif
