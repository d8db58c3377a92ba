/*
 * array.c - arrays and mipmapped arrays: handles with a size that their device is charged for. There is no memory
 * behind them, as nothing here reads or writes arrays. Sparse arrays, and those whose mapping is deferred, take
 * nothing. Arrays belong to the context that they were made in.
 */
#include <stdlib.h>

#include "internal.h"
#include "table.h"

#define MOST_LEVELS 32

struct CUarray_st {
  CUarray self; /* key */
  CUDA_ARRAY3D_DESCRIPTOR desc;
  CUcontext context;
  uint64_t bytes;
  CUmipmappedArray parent; /* whose level it is; NULL: an array of its own */
  UT_hash_handle hh;
};

struct CUmipmappedArray_st {
  CUmipmappedArray self; /* key */
  CUDA_ARRAY3D_DESCRIPTOR desc;
  CUcontext context;
  uint64_t bytes;
  unsigned levels;
  CUarray level[MOST_LEVELS]; /* made when they are asked for */
  UT_hash_handle hh;
};

static struct {
  CUarray arrays;
  CUmipmappedArray mipmaps;
} state;

static uint64_t at_least_1(uint64_t value) {
  return value ? value : 1;
}

/* What the device is charged. */
static uint64_t charged(const CUDA_ARRAY3D_DESCRIPTOR *desc, uint64_t bytes) {
  return desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) ? 0 : bytes;
}

/* ---- the account. Callers hold the lock. ---- */

/* NULL, or why the allocation call is refused. */
static const char *take(int device, uint64_t bytes) {
  const char *cause = NULL;
  if (!bytes)
    return NULL;
  if (sim_fault_due(SIM_CALL_MEMORY, bytes))
    cause = "fault";
  else if (!sim_capacity_charge(device, SIMGPU_ARRAY, bytes))
    cause = "capacity";
  return cause;
}

static void note(int device, uint64_t bytes, const void *handle, const char *cause) {
  if (bytes)
    sim_journal_alloc(device, SIMGPU_ARRAY, bytes, (uintptr_t)handle, cause);
}

static void untake(int device, uint64_t bytes) {
  if (bytes)
    sim_capacity_refund(device, SIMGPU_ARRAY, bytes);
}

static void give(int device, uint64_t bytes, const void *handle) {
  if (!bytes)
    return;
  untake(device, bytes);
  sim_journal_free(device, SIMGPU_ARRAY, bytes, (uintptr_t)handle);
}

/* ---- arrays ---- */
static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc) {
  CUcontext context;
  CUarray array;
  const char *cause;
  uint64_t bytes;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  if (!out || !sim_array_level_bytes(desc, 0, &bytes))
    return CUDA_ERROR_INVALID_VALUE;
  array = calloc(1, sizeof *array);
  if (!array)
    return CUDA_ERROR_OUT_OF_MEMORY;
  array->self = array;
  array->desc = *desc;
  array->context = context;
  array->bytes = charged(desc, bytes);
  sim_lock();
  cause = take(context->device, array->bytes);
  if (!cause) {
    HASH_ADD_PTR(state.arrays, self, array);
    if (!SIM_ENTERED(array)) {
      untake(context->device, array->bytes);
      cause = "host";
    }
  }
  note(context->device, array->bytes, cause ? NULL : array, cause);
  sim_unlock();
  if (cause) {
    free(array);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = array;
  return CUDA_SUCCESS;
}

static CUDA_ARRAY3D_DESCRIPTOR flat(size_t width, size_t height, CUarray_format format, unsigned channels) {
  return (CUDA_ARRAY3D_DESCRIPTOR){.Width = width, .Height = height, .Format = format, .NumChannels = channels};
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  CUDA_ARRAY3D_DESCRIPTOR desc = {0};
  if (d)
    desc = flat(d->Width, d->Height, d->Format, d->NumChannels);
  return create(out, &desc);
}

CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
  CUDA_ARRAY3D_DESCRIPTOR desc = {0};
  if (d)
    desc = flat(d->Width, d->Height, d->Format, d->NumChannels);
  return create(out, &desc);
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  CUDA_ARRAY3D_DESCRIPTOR desc = {0};
  if (d)
    desc = *d;
  return create(out, &desc);
}

CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
  CUDA_ARRAY3D_DESCRIPTOR desc = {0};
  if (d) {
    desc = flat(d->Width, d->Height, d->Format, d->NumChannels);
    desc.Depth = d->Depth;
    desc.Flags = d->Flags;
  }
  return create(out, &desc);
}

/* Caller holds the lock. */
static void drop_array(CUarray array) {
  HASH_DEL(state.arrays, array);
  give(array->context->device, array->bytes, array);
  free(array);
}

CUresult cuArrayDestroy(CUarray handle) {
  CUarray array;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  HASH_FIND_PTR(state.arrays, &handle, array);
  if (array && !array->parent)
    drop_array(array);
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_unlock();
  return result;
}

static CUresult describe(CUarray handle, CUDA_ARRAY3D_DESCRIPTOR *out, bool wanted) {
  CUarray array;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!wanted)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  HASH_FIND_PTR(state.arrays, &handle, array);
  if (array)
    *out = array->desc;
  sim_unlock();
  return array ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  CUresult result = describe(array, &d, out);
  if (!result)
    *out = (CUDA_ARRAY_DESCRIPTOR){d.Width, d.Height, d.Format, d.NumChannels};
  return result;
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *out, CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  CUresult result = describe(array, &d, out);
  if (!result)
    *out = (CUDA_ARRAY_DESCRIPTOR_v1){(unsigned)d.Width, (unsigned)d.Height, d.Format, d.NumChannels};
  return result;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  CUresult result = describe(array, &d, out);
  if (!result)
    *out = d;
  return result;
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *out, CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  CUresult result = describe(array, &d, out);
  if (!result)
    *out = (CUDA_ARRAY3D_DESCRIPTOR_v1){(unsigned)d.Width, (unsigned)d.Height, (unsigned)d.Depth,
                                        d.Format,          d.NumChannels,      d.Flags};
  return result;
}

/* ---- mipmapped arrays ---- */

/* With `foreign` the memory is somebody else's and nothing is charged. */
static CUresult create_mipmap(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels,
                              bool foreign) {
  CUcontext context;
  CUmipmappedArray mipmap;
  const char *cause;
  uint64_t bytes;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  if (!out || !desc || !levels || levels > MOST_LEVELS || !sim_array_mipmap_bytes(desc, levels, &bytes))
    return CUDA_ERROR_INVALID_VALUE;
  mipmap = calloc(1, sizeof *mipmap);
  if (!mipmap)
    return CUDA_ERROR_OUT_OF_MEMORY;
  mipmap->self = mipmap;
  mipmap->desc = *desc;
  mipmap->context = context;
  mipmap->levels = levels;
  mipmap->bytes = foreign ? 0 : charged(desc, bytes);
  sim_lock();
  cause = take(context->device, mipmap->bytes);
  if (!cause) {
    HASH_ADD_PTR(state.mipmaps, self, mipmap);
    if (!SIM_ENTERED(mipmap)) {
      untake(context->device, mipmap->bytes);
      cause = "host";
    }
  }
  note(context->device, mipmap->bytes, cause ? NULL : mipmap, cause);
  sim_unlock();
  if (cause) {
    free(mipmap);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = mipmap;
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels) {
  return create_mipmap(out, desc, levels, false);
}

CUresult sim_array_map(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels) {
  return create_mipmap(out, desc, levels, true);
}

/* Caller holds the lock. */
static void drop_mipmap(CUmipmappedArray mipmap) {
  HASH_DEL(state.mipmaps, mipmap);
  for (unsigned level = 0; level < mipmap->levels; level++) {
    if (mipmap->level[level])
      drop_array(mipmap->level[level]);
  }
  give(mipmap->context->device, mipmap->bytes, mipmap);
  free(mipmap);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  CUmipmappedArray mipmap;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  HASH_FIND_PTR(state.mipmaps, &handle, mipmap);
  if (mipmap)
    drop_mipmap(mipmap);
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_unlock();
  return result;
}

/* The array that stands for a level; it has no memory of its own. Caller holds the lock. */
static CUarray level_of(CUmipmappedArray mipmap, unsigned level) {
  CUarray array = mipmap->level[level];
  if (array)
    return array;
  array = calloc(1, sizeof *array);
  if (!array)
    return NULL;
  array->self = array;
  array->desc = mipmap->desc;
  array->desc.Width = at_least_1(mipmap->desc.Width >> level);
  array->desc.Height = mipmap->desc.Height ? at_least_1(mipmap->desc.Height >> level) : 0;
  array->context = mipmap->context;
  array->parent = mipmap;
  HASH_ADD_PTR(state.arrays, self, array);
  if (!SIM_ENTERED(array)) {
    free(array);
    return NULL;
  }
  mipmap->level[level] = array;
  return array;
}

CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned int level) {
  CUmipmappedArray mipmap;
  CUarray array = NULL;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  HASH_FIND_PTR(state.mipmaps, &handle, mipmap);
  if (!mipmap)
    result = CUDA_ERROR_INVALID_HANDLE;
  else if (!out || level >= mipmap->levels)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (!(array = level_of(mipmap, level)))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  if (!result)
    *out = array;
  sim_unlock();
  return result;
}

void sim_array_drop(CUcontext context) {
  CUmipmappedArray mipmap, next_mipmap;
  CUarray array, next;
  HASH_ITER(hh, state.mipmaps, mipmap, next_mipmap) {
    if (mipmap->context == context)
      drop_mipmap(mipmap);
  }
  HASH_ITER(hh, state.arrays, array, next) {
    if (array->context == context)
      drop_array(array);
  }
}
