/*
 * vmm.h - physical memory, as vmm_physical.c lends it to vmm_mapping.c. Of no use to other files.
 */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include <sys/types.h>

#include "internal.h"
#include "table.h"

struct physical {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop;
  uint64_t bytes;
  uint64_t references, mappings;
  int device, fd;
  ino_t inode;
  enum simgpu_kind kind;
  UT_hash_handle hh;
};

/* What sizes and addresses are multiples of. */
uint64_t sim_physical_unit(void);
/* The memory behind a handle that was not released; NULL: none. Caller holds sim_lock(). */
struct physical *sim_physical_find(CUmemGenericAllocationHandle handle);
/* Frees it once it has neither references nor mappings. Caller holds sim_lock(). */
void sim_physical_let_go(struct physical *p);

#endif
