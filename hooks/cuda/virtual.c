/*
 * virtual.c - the wrappers of virtual memory management. Physical memory is the device's loss, addresses and mappings
 * are none; but a mapping holds physical memory whose handles are gone (physical.h). Multicast objects, and the pages
 * of sparse arrays, hold it too; they are not followed, so it counts as given back once its handles and mappings are
 * gone.
 */
#include "hooks/cuda/driver.h"
#include "hooks/cuda/physical.h"
#include "hooks/cuda/wrap.h"

#define HOST (-1)

static int device_of(const CUmemAllocationProp_v1 *properties) {
  return properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties->location.id : HOST;
}

/* Of host memory only what was refused is told: where it is, the device has lost nothing. */
BSG_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle_v1 *handle, size_t bytes,
                                const CUmemAllocationProp_v1 *properties, unsigned long long flags) {
  struct bsg_call call;
  int device;
  BSG_ENTER(cuMemCreate, (handle, bytes, properties, flags));
  device = device_of(properties);
  if (device == HOST) {
    result = real(handle, bytes, properties, flags);
    if (result == CUDA_SUCCESS)
      bsg_record_apart(BSG_HOOK_cuMemCreate, BSG_KIND_PINNED, bsg_physical_create(*handle), bytes, 0);
    else if (result == CUDA_ERROR_OUT_OF_MEMORY)
      bsg_record_unsaid(BSG_HOOK_cuMemCreate, BSG_CALLER, -1);
  } else {
    result = bsg_record_request_on(&call, BSG_HOOK_cuMemCreate, BSG_CALLER, bytes, device);
    if (result == CUDA_SUCCESS)
      result = real(handle, bytes, properties, flags);
    BSG_OUTCOME(call, BSG_KIND_VIRTUAL, bsg_physical_create(*handle), bytes);
  }
  BSG_LEAVE();
}

BSG_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle_v1 handle) {
  struct bsg_ending *ending;
  BSG_ENTER(cuMemRelease, (handle));
  ending = bsg_physical_release(handle);
  result = real(handle);
  bsg_physical_settle(ending, result == CUDA_SUCCESS, bsg_record_gone);
  BSG_LEAVE();
}

BSG_EXPORT CUresult cuMemMap(CUdeviceptr_v2 address, size_t bytes, size_t offset,
                             CUmemGenericAllocationHandle_v1 handle, unsigned long long flags) {
  BSG_ENTER(cuMemMap, (address, bytes, offset, handle, flags));
  result = real(address, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS)
    bsg_physical_map(address, bytes, handle);
  else if (result == CUDA_ERROR_OUT_OF_MEMORY)
    bsg_record_unsaid(BSG_HOOK_cuMemMap, BSG_CALLER, -1);
  BSG_LEAVE();
}

BSG_EXPORT CUresult cuMemUnmap(CUdeviceptr_v2 address, size_t bytes) {
  struct bsg_ending *ending;
  BSG_ENTER(cuMemUnmap, (address, bytes));
  ending = bsg_physical_unmap(address, bytes);
  result = real(address, bytes);
  bsg_physical_settle(ending, result == CUDA_SUCCESS, bsg_record_gone);
  BSG_LEAVE();
}

/* Page tables are the driver's own. */
BSG_EXPORT CUresult cuMemSetAccess(CUdeviceptr_v2 address, size_t bytes, const CUmemAccessDesc_v1 *access,
                                   size_t count) {
  BSG_UNSAID(cuMemSetAccess, (address, bytes, access, count));
}

BSG_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle_v1 *handle, void *address) {
  BSG_ENTER(cuMemRetainAllocationHandle, (handle, address));
  result = real(handle, address);
  if (result == CUDA_SUCCESS && !bsg_physical_retain(*handle))
    bsg_physical_retain_mapped(*handle, (uint64_t)(uintptr_t)address);
  BSG_LEAVE();
}

/* Exported by this very process, it may be a handle that we know; else it is memory that another one lost. Its size is
 * not known before it is mapped. */
BSG_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle_v1 *handle, void *shareable,
                                                   CUmemAllocationHandleType type) {
  int device = 0;
  BSG_ENTER(cuMemImportFromShareableHandle, (handle, shareable, type));
  result = real(handle, shareable, type);
  if (result == CUDA_SUCCESS && !bsg_physical_retain(*handle)) {
    if (bsg_driver_physical_device(*handle, &device) != 0 || device < 0)
      device = 0;
    bsg_record_apart(BSG_HOOK_cuMemImportFromShareableHandle, BSG_KIND_MAPPED, bsg_physical_create(*handle), 0, device);
  }
  BSG_LEAVE();
}
