/*
 * simgpu.h - what tests may ask of the simulated driver beyond the CUDA Driver API, and the environment it obeys.
 *
 * The driver is a libcuda.so.1 whose devices are host memory with a capacity. It serves the Driver API and takes no
 * part in NVIDIA's private interface between runtime and driver (cuGetExportTable finds nothing), so a real libcudart
 * cannot run on it. All work is done before a call returns: streams and events are there, and always idle.
 *
 * Every function below may be called from any thread, before cuInit() too. Sizes are bytes, devices are ordinals; an
 * unknown device gives 0 (or -1 where the result is int). "Allocation call" means cuMemAlloc, cuMemAllocPitch or
 * cuMemAllocManaged, any version, with valid arguments: these are counted, from 1, over all devices and threads, and
 * only these can be made to fail. Not counted: pinned host memory.
 *
 * Environment, read once at the first call. Sizes are integers with an optional B, KB, MB, GB or KiB, MiB, GiB.
 *
 *   SIMGPU_MEMORY          1GiB   memory of each device
 *   SIMGPU_DEVICES         1      number of devices, 0 to 16
 *   SIMGPU_GRANULARITY     512    what a device hands out is rounded up to this; a power of two from 512 to 1 GiB.
 *                                 Requests up to half of it share units, as in NVIDIA's driver (which has 2 MiB); here
 * they are packed without gaps SIMGPU_CONTEXT_MEMORY  0      what a device loses to its first context
 *   SIMGPU_DRIVER_VERSION  cuda.h what cuDriverGetVersion() says, e.g. 12040
 *   SIMGPU_FAIL_AT         -      N[:COUNT][,N[:COUNT]...]: allocation calls N to N+COUNT-1 fail (COUNT is 1)
 *   SIMGPU_FAIL_EVERY      0      every N-th allocation call fails
 *   SIMGPU_FAIL_SIZE       0      every allocation call for at least so many bytes fails
 *   SIMGPU_PROTECT         0      1: device addresses are unreadable to the process, but for managed memory
 *   SIMGPU_POISON          0      1: fresh memory is filled with 0xFF (NaN as a float)
 *   SIMGPU_LOG             -      file that gets one line an allocation, free and failure:
 *                                 SECONDS PID alloc|free|fail device=D bytes=N address=0xA used=U call=C [cause=...]
 *   SIMGPU_STATS           0      1: a line on stderr at exit, from processes that allocated
 */
#ifndef SIMGPU_H
#define SIMGPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the capacity of a device; what is allocated stays, even above it. Returns 0, or -1 for an unknown device. */
int simgpu_set_capacity(int device, uint64_t bytes);

/* Bytes that the device has handed out, rounded by its granularity, context memory included. */
uint64_t simgpu_used(int device);

/* High-water mark of simgpu_used(). With reset, the mark restarts from what is used now; the old one is returned. */
uint64_t simgpu_peak(int device, int reset);

/* Live allocations on a device. */
uint64_t simgpu_live(int device);

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

#ifdef __cplusplus
}
#endif
#endif
