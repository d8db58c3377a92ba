/*
 * newer.h - the entry points to memory that CUDA 13.0 added, which the headers of 12.x do not know, and names for types
 * that cudaTypedefs.h has under another name. What else 13.0 changed (another default version of a name, locations in
 * place of devices for advice and prefetch) has no part in accounting.
 */
#ifndef SIM_NEWER_H
#define SIM_NEWER_H

#include "internal.h"

#if CUDA_VERSION < 13000
CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type);
CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type);
CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool);

typedef CUresult (*PFN_cuMemGetDefaultMemPool_v13000)(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);
typedef CUresult (*PFN_cuMemGetMemPool_v13000)(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);
typedef CUresult (*PFN_cuMemSetMemPool_v13000)(CUmemLocation *, CUmemAllocationType, CUmemoryPool);
#endif

/* From CUDA 12 on the bare name means the function that was new in 11.4. */
typedef PFN_cuGraphInstantiateWithFlags_v11040 PFN_cuGraphInstantiate_v12000;

#endif
