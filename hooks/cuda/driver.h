/*
 * driver.h - the few driver calls that hooks/cuda/ makes for itself: whose memory is it, how much is there, who is the
 * device. They go to libcuda directly and are never recorded. Each answers "not known" where there is no driver.
 */
#ifndef BSG_CUDA_DRIVER_H
#define BSG_CUDA_DRIVER_H

#include <stdint.h>

#include "shim/facts.h"

/* Device of the calling thread's context, 0 where there is none; always below BSG_MAX_DEVICES. */
int bsg_driver_device(void);

/* Free and total bytes of a device, before any limit. -ENODEV: not known. May switch the context and switches back. */
int bsg_driver_memory(int device, uint64_t *free_bytes, uint64_t *total_bytes);

/* Remembers the calling thread's context as one through which `device` can be asked. */
void bsg_driver_remember(int device);

/* Name, capacity before any limit, driver version. */
void bsg_driver_describe(int device, struct bsg_device_fact *out);

/* After fork(). */
void bsg_driver_forget(void);

#endif
