/*
 * pool.h - memory pools, as pool.c lends them to pool_handle.c. Other files need internal.h only. Callers of all of it
 * hold sim_lock().
 */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "internal.h"

struct CUmemPoolHandle_st {
  struct CUmemPoolHandle_st *next;
  struct sim_reserve reserve;
  uint64_t threshold, most; /* most: bytes that it may hand out at once; 0: any */
  uint64_t live;
  int reuse[3]; /* attributes that change nothing here */
  bool destroyed;
};

/* NULL where the host has no memory. */
CUmemoryPool sim_pool_make(int device, uint64_t most);
/* Whether it is one, and was not destroyed. */
bool sim_pool_known(CUmemoryPool pool);
/* Destroys a pool; what is still allocated from it stays, and the pool with it. False for a default or unknown one. */
bool sim_pool_end(CUmemoryPool pool);
/* A device's default pool, and the one that it allocates from; NULL where the host has no memory. */
CUmemoryPool sim_pool_standard(int device);
CUmemoryPool sim_pool_current(int device);
/* Sets the latter; false for a pool that is unknown or of another device. */
bool sim_pool_choose(int device, CUmemoryPool pool);

#endif
