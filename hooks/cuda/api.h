/*
 * api.h - the Driver API's types, as hooks/cuda/ needs them: every ABI side by side, under the names that the driver
 * exports. Types only: nothing of CUDA is linked. Include this, never cuda.h.
 */
#ifndef BSG_CUDA_API_H
#define BSG_CUDA_API_H

/* Without it cuda.h renames cuMemAlloc to cuMemAlloc_v2 by macros and hides the older ABIs. */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cudaTypedefs.h>

#endif
