/*
 * simgpu.h - what tests may ask of the simulated driver beyond the CUDA Driver API, and the environment it obeys.
 *
 * The driver is a libcuda.so.1 whose devices are host memory with a capacity. It serves the Driver API and takes no
 * part in NVIDIA's private interface between runtime and driver (cuGetExportTable finds nothing), so a real libcudart
 * cannot run on it. All work is done before a call returns: streams and events are there, and always idle.
 *
 * Every function below may be called from any thread, before cuInit() too. Sizes are bytes, devices are ordinals; an
 * unknown device gives 0 (or -1 where the result is int).
 *
 * "Allocation call" means a call with valid arguments that asks for device memory: cuMemAlloc, cuMemAllocPitch,
 * cuMemAllocManaged, cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemCreate, the calls that create arrays and
 * mipmapped arrays, and cuGraphLaunch and cuGraphUpload of a graph that allocates, any version. These are counted, from
 * 1, over all devices and threads, and only these can be made to
 * fail. SIMGPU_FAIL_CALLS=all adds those that may run out of
 * memory without being asked for any: creating contexts, streams and events, loading modules and libraries,
 * instantiating graphs, and host-pinned memory.
 *
 * Environment, read once at the first call. Sizes are integers with an optional B, KB, MB, GB or KiB, MiB, GiB.
 *
 *   SIMGPU_MEMORY          1GiB   memory of each device
 *   SIMGPU_DEVICES         1      number of devices, 0 to 16
 *   SIMGPU_GRANULARITY     512    what a device hands out is rounded up to this; a power of two from 512 to 1 GiB.
 *                                 Requests up to half of it share units with others of their kind, as in NVIDIA's
 *                                 driver (which has 2 MiB); here they are packed without gaps
 *   SIMGPU_POOL_CHUNK      2MiB   what memory pools take from a device at once, a power of two from 512 to 1 GiB; at
 *                                 least SIMGPU_GRANULARITY
 *   SIMGPU_CONTEXT_MEMORY  0      what each context takes from its device
 *   SIMGPU_MODULE_MEMORY   0      what each module or library takes
 *   SIMGPU_QUEUE_MEMORY    0      what each stream, event and executable graph takes
 *   SIMGPU_SHARED          -      file that processes share their devices' memory by; made where it is not there. What
 *                                 a process used, however it ended, is the others' again. One SIMGPU_MEMORY for all
 *   SIMGPU_DRIVER_VERSION  build  what cuDriverGetVersion() says, e.g. 12040, and the newest that cuGetProcAddress()
 *                                 finds. What can be linked and dlsym'd is fixed: <build>/simgpu/lib has everything and
 *                                 is of the version of cuda.h, lib-11.8, lib-12.4 and lib-13.0 are of that version
 *   SIMGPU_FAIL_AT         -      N[:COUNT][,N[:COUNT]...]: allocation calls N to N+COUNT-1 fail (COUNT is 1)
 *   SIMGPU_FAIL_EVERY      0      every N-th allocation call fails
 *   SIMGPU_FAIL_SIZE       0      every allocation call for at least so many bytes fails
 *   SIMGPU_FAIL_CALLS      memory what is counted as an allocation call: memory or all (above)
 *   SIMGPU_PROTECT         0      1: device addresses are unreadable to the process, but for managed memory
 *   SIMGPU_POISON          0      1: fresh memory is filled with 0xFF (NaN as a float)
 *   SIMGPU_LOG             -      file that gets one line an allocation, free and failure:
 *                                 SECONDS PID alloc|free|fail device=D bytes=N address=0xA used=U call=C [kind=K]
 *                                 [cause=...]; without kind it is plain memory
 *   SIMGPU_REFUSALS        -      file that gets a JSON object, on a line of its own, for each refused call: pid, device,
 *                                 bytes (asked for), capacity, unit (SIMGPU_GRANULARITY), free, used (by this process),
 *                                 held (used less contexts, modules and queues), others (used by others), shared
 *                                 (whether there may be others), threads (that allocated or freed so far)
 *   SIMGPU_STATS           0      1: a line on stderr at exit, from processes that allocated
 */
#ifndef SIMGPU_H
#define SIMGPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What memory is for. Every byte of simgpu_used() is of one of the kinds before SIMGPU_PINNED; the kinds from there on
 * take nothing from a device. */
enum simgpu_kind {
  SIMGPU_PLAIN,   /* cuMemAlloc, cuMemAllocPitch */
  SIMGPU_MANAGED, /* cuMemAllocManaged */
  SIMGPU_POOL,    /* memory pools: cuMemAllocAsync, cuMemAllocFromPoolAsync */
  SIMGPU_GRAPH,   /* memory nodes of graphs */
  SIMGPU_VMM,     /* cuMemCreate */
  SIMGPU_ARRAY,   /* arrays and mipmapped arrays */
  SIMGPU_CONTEXT, /* contexts themselves */
  SIMGPU_MODULE,  /* modules and libraries */
  SIMGPU_QUEUE,   /* streams, events and executable graphs themselves */
  SIMGPU_PINNED,  /* host memory that the driver allocated or registered */
  SIMGPU_MAPPED,  /* memory of another process or interface: IPC, external, imported */
  SIMGPU_KINDS
};

/* Sets the capacity of a device; what is allocated stays, even above it. Returns 0, or -1 for an unknown device. */
int simgpu_set_capacity(int device, uint64_t bytes);

/* Bytes that the device has handed out, rounded by its granularity, context memory included. */
uint64_t simgpu_used(int device);

/* High-water mark of simgpu_used(). With reset, the mark restarts from what is used now; the old one is returned. */
uint64_t simgpu_peak(int device, int reset);

/* Live allocations on a device: blocks of kinds SIMGPU_PLAIN to SIMGPU_ARRAY, cuMemCreate's physical ones included. */
uint64_t simgpu_live(int device);

/* What a device has lost to a kind (enum simgpu_kind), rounded as the device rounds. For pools and graphs: reserved,
 * whether in use or not. The sum over all kinds is simgpu_used(). */
uint64_t simgpu_used_by(int device, int kind);

/* What clients hold of a kind, in the bytes that they asked for. */
uint64_t simgpu_requested_by(int device, int kind);

/* Live blocks of a kind. */
uint64_t simgpu_live_by(int device, int kind);

/* What other live processes have taken of a device, with SIMGPU_SHARED. Not part of simgpu_used(). */
uint64_t simgpu_used_by_others(int device);

/* simgpu_used_by(device, SIMGPU_POOL): what all memory pools of a device have reserved. */
uint64_t simgpu_reserved(int device);

/* Writes a CUipcMemHandle (64 bytes) for device memory of so many bytes that another process might own: a process
 * cannot open its own handles. Returns 0, or -1 for an unknown device or no bytes. */
int simgpu_ipc_handle(int device, uint64_t bytes, void *handle);

/* Allocation calls so far, refused ones included. */
uint64_t simgpu_calls(void);

/* Allocation calls refused so far: by capacity or by a fault on demand. */
uint64_t simgpu_failures(void);

/* The n-th allocation call from now fails (1: the next), and count-1 after it. Replaces what was set before; n 0 clears
 * it. */
void simgpu_fail_at(uint64_t n_from_now, uint64_t count);

/* Every n-th allocation call fails, counted from process start; 0 clears it. */
void simgpu_fail_every(uint64_t n);

/* Every allocation call for at least so many bytes fails; 0 clears it. */
void simgpu_fail_size(uint64_t bytes);

/* 1: as SIMGPU_FAIL_CALLS=all from now on, 0: as =memory. */
void simgpu_fail_calls(int all);

#ifdef __cplusplus
}
#endif
#endif
