/*
 * reserves.h - what the device has lost to pools and to graphs. A pool hands out parts of what it has reserved, and
 * keeps them when they are freed; graphs with allocation nodes have a reserve of their own for each device. The driver
 * is asked for the figures: after calls that must have changed one, and before one is told to anybody. Thread-safe; a
 * lock of its own is held while the driver is asked, so that a pool is not destroyed meanwhile.
 */
#ifndef BSG_CUDA_RESERVES_H
#define BSG_CUDA_RESERVES_H

#include <stdbool.h>
#include <stdint.h>

#include "hooks/cuda/api.h"

/* Called with the change of what a device has reserved: for the memory limit. */
typedef void (*bsg_reserve_changed)(int device, uint64_t before, uint64_t now);

/* The number of a pool; made known where it was not. 0: there are too many. */
uint8_t bsg_reserves_pool(CUmemoryPool pool, int device);

/* The device of a pool that is known; -1: it is not. */
int bsg_reserves_device(CUmemoryPool pool);

/* A pool of its device has handed out more, as the ledger has it: asks the driver, but not each time. */
void bsg_reserves_taken(uint8_t pool, bsg_reserve_changed changed);

/* How much of `bytes` a pool would have to reserve anew. */
uint64_t bsg_reserves_wanting(CUmemoryPool pool, uint64_t bytes);

/* Asks the driver about all pools and graphs of a device. Nothing where there are none. */
void bsg_reserves_refresh(int device, bsg_reserve_changed changed);

/* Around cuMemPoolDestroy: nobody asks about it any more; put back if the driver refused. What is still out stays. */
uint8_t bsg_reserves_take_pool(CUmemoryPool pool);
void bsg_reserves_put_pool_back(CUmemoryPool pool, uint8_t number);

/* Something was freed: a pool that was destroyed ends with its last allocation. */
void bsg_reserves_freed(uint8_t pool, bsg_reserve_changed changed);

/* A device's primary context is gone, and its pools with it. */
void bsg_reserves_reset(int device, bsg_reserve_changed changed);

/* Has a device any pool or graph that allocates? Cheap. */
bool bsg_reserves_any(int device);

/* Graphs of this device allocate from now on. */
void bsg_reserves_graph(int device);

/* Devices whose graphs allocate, as a bit set. */
uint64_t bsg_reserves_graph_devices(void);

/* What pools of a device hold and have not handed out. */
uint64_t bsg_reserves_idle(int device);

/* After fork(). */
void bsg_reserves_forget(void);

#endif
