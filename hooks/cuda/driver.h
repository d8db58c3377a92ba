/*
 * driver.h - the few driver calls that hooks/cuda/ makes for itself: whose memory is it, how much is there, who is the
 * device. They go to libcuda directly and are never recorded. Each answers "not known" where there is no driver.
 */
#ifndef BSG_CUDA_DRIVER_H
#define BSG_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hooks/cuda/api.h"
#include "shim/facts.h"

/* Looks all entries up at once, so that no look-up is left for an allocation. */
void bsg_driver_prepare(void);

/* The calling thread's context; NULL: none. */
CUcontext bsg_driver_context(void);

/* Device of the calling thread's context, 0 where there is none; always below BSG_MAX_DEVICES. */
int bsg_driver_device(void);

/* Free and total bytes of a device, before any limit, asked through `context` where another device is current (NULL: it
 * must be). -ENODEV: not known. May switch the context and switches back. */
int bsg_driver_memory(int device, CUcontext context, uint64_t *free_bytes, uint64_t *total_bytes);

/* Name, capacity before any limit, driver version. */
void bsg_driver_describe(int device, struct bsg_device_fact *out);

/* PCI address, "0000:65:00.0"; -ENODEV: not known. */
int bsg_driver_bus(int device, char *out, size_t room);

/* UUID of a device, or of the instance of one that it is (MIG); -ENODEV: not known. */
int bsg_driver_uuid(int device, unsigned char out[16]);

/* 13000 is 13.0; 0: not known. */
int bsg_driver_version(void);

/* The context of a stream; NULL: not known. */
CUcontext bsg_driver_stream_context(CUstream stream, bool per_thread);

/* Is this stream being captured into a graph? */
bool bsg_driver_capturing(CUstream stream, bool per_thread);

/* The pool that cuMemAllocAsync takes from on a device; NULL: not known. */
CUmemoryPool bsg_driver_pool(int device);

/* Bytes that a pool has reserved, or (used) has handed out. -ENOSYS: not known. */
int bsg_driver_pool_bytes(CUmemoryPool pool, bool used, uint64_t *bytes);

/* Bytes that a device's graphs have reserved. -ENOSYS: not known. */
int bsg_driver_graph_bytes(int device, uint64_t *bytes);

/* Bytes of the allocation at an address; 0: not known. */
uint64_t bsg_driver_size(CUdeviceptr address);

/* Is a device's primary context there? */
bool bsg_driver_primary_active(int device);

/* The context of a green context; NULL: not known. */
CUcontext bsg_driver_green_context(CUgreenCtx green);

/* Device (-1: host memory) of physical memory; -ENOSYS: not known. */
int bsg_driver_physical_device(CUmemGenericAllocationHandle handle, int *device);

#endif
