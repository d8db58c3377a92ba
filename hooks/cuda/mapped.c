/*
 * mapped.c - the wrappers of memory that another process or interface owns and that is mapped here: IPC and external
 * memory. Entered, and in no sum: the device lost it to somebody else.
 */
#include "hooks/cuda/driver.h"
#include "hooks/cuda/wrap.h"

#define KEY(external) BSG_KEY(BSG_KIND_MAPPED, external)

BSG_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr_v2 *address, CUipcMemHandle_v1 handle, unsigned int flags) {
  BSG_SET_APART(cuIpcOpenMemHandle, (address, handle, flags), BSG_KIND_MAPPED, *address, bsg_driver_size(*address));
}

BSG_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr_v2 *address, CUipcMemHandle_v1 handle, unsigned int flags) {
  BSG_SET_APART(cuIpcOpenMemHandle_v2, (address, handle, flags), BSG_KIND_MAPPED, *address, bsg_driver_size(*address));
}

BSG_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr_v2 address) {
  BSG_FREE(cuIpcCloseMemHandle, (address), address);
}

BSG_EXPORT CUresult cuImportExternalMemory(CUexternalMemory *external,
                                           const CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1 *descriptor) {
  BSG_SET_APART(cuImportExternalMemory, (external, descriptor), BSG_KIND_MAPPED, KEY(*external), descriptor->size);
}

BSG_EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory external) {
  BSG_FREE(cuDestroyExternalMemory, (external), external ? KEY(external) : 0);
}

/* An address of what is entered already: known, so that its cuMemFree() is no surprise. */
BSG_EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr_v2 *address, CUexternalMemory external,
                                                    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1 *descriptor) {
  BSG_SET_APART(cuExternalMemoryGetMappedBuffer, (address, external, descriptor), BSG_KIND_MAPPED, *address, 0);
}
