/*
 * driver.c - see driver.h. Depends on the host's look-up. Never goes through our own wrappers, never creates a context,
 * keeps nothing but where the entries are.
 */
#include "hooks/cuda/driver.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "hooks/cuda/api.h"
#include "hooks/cuda/host.h"

/* Export, and type of a pointer to it. */
#define ENTRIES(X)                                                                                                     \
  X(cuCtxGetDevice, PFN_cuCtxGetDevice_v2000)                                                                          \
  X(cuCtxGetCurrent, PFN_cuCtxGetCurrent_v4000)                                                                        \
  X(cuCtxSetCurrent, PFN_cuCtxSetCurrent_v4000)                                                                        \
  X(cuMemGetInfo_v2, PFN_cuMemGetInfo_v3020)                                                                           \
  X(cuDeviceGetName, PFN_cuDeviceGetName_v2000)                                                                        \
  X(cuDeviceTotalMem_v2, PFN_cuDeviceTotalMem_v3020)                                                                   \
  X(cuDeviceGetPCIBusId, PFN_cuDeviceGetPCIBusId_v4010)                                                                \
  X(cuDeviceGetUuid_v2, PFN_cuDeviceGetUuid_v11040)                                                                    \
  X(cuDriverGetVersion, PFN_cuDriverGetVersion_v2020)                                                                  \
  X(cuStreamGetCtx, PFN_cuStreamGetCtx_v9020)                                                                          \
  X(cuStreamGetCtx_ptsz, PFN_cuStreamGetCtx_v9020_ptsz)                                                                \
  X(cuStreamIsCapturing, PFN_cuStreamIsCapturing_v10000)                                                               \
  X(cuStreamIsCapturing_ptsz, PFN_cuStreamIsCapturing_v10000_ptsz)                                                     \
  X(cuDeviceGetMemPool, PFN_cuDeviceGetMemPool_v11020)                                                                 \
  X(cuMemPoolGetAttribute, PFN_cuMemPoolGetAttribute_v11020)                                                           \
  X(cuDeviceGetGraphMemAttribute, PFN_cuDeviceGetGraphMemAttribute_v11040)                                             \
  X(cuMemGetAddressRange_v2, PFN_cuMemGetAddressRange_v3020)                                                           \
  X(cuDevicePrimaryCtxGetState, PFN_cuDevicePrimaryCtxGetState_v7000)                                                  \
  X(cuCtxFromGreenCtx, PFN_cuCtxFromGreenCtx_v12040)                                                                   \
  X(cuMemGetAllocationPropertiesFromHandle, PFN_cuMemGetAllocationPropertiesFromHandle_v10020)

enum entry_id {
#define X(symbol, type) ENTRY_##symbol,
  ENTRIES(X)
#undef X
      ENTRY_COUNT
};

static const char *const symbols[ENTRY_COUNT] = {
#define X(symbol, type) #symbol,
    ENTRIES(X)
#undef X
};

#define X(symbol, type) typedef type fn_##symbol;
ENTRIES(X)
#undef X

static struct {
  _Atomic(void *) entries[ENTRY_COUNT];
  atomic_bool prepared; /* every entry was looked up with the driver there: what is empty stays so */
} state;

static void *look_up(enum entry_id id) {
  void *entry = bsg_cuda_host.driver_entry(symbols[id]);
  if (entry)
    atomic_store_explicit(&state.entries[id], entry, memory_order_release);
  return entry;
}

static inline void *find(enum entry_id id) {
  void *entry = atomic_load_explicit(&state.entries[id], memory_order_acquire);
  if (__builtin_expect(!entry, 0) && !atomic_load(&state.prepared))
    entry = look_up(id);
  return entry;
}
#define FIND(symbol) ((fn_##symbol)find(ENTRY_##symbol))

void bsg_driver_prepare(void) {
  bool present = false;
  if (atomic_load(&state.prepared))
    return;
  for (int id = 0; id < ENTRY_COUNT; id++)
    present |= find(id) != NULL;
  if (present)
    atomic_store(&state.prepared, true);
}

CUcontext bsg_driver_context(void) {
  fn_cuCtxGetCurrent get = FIND(cuCtxGetCurrent);
  CUcontext context = NULL;
  return get && get(&context) == CUDA_SUCCESS ? context : NULL;
}

/* -1: there is no context. */
static int current_device(void) {
  fn_cuCtxGetDevice get = FIND(cuCtxGetDevice);
  CUdevice device;
  if (!get || get(&device) != CUDA_SUCCESS || device < 0 || device >= BSG_MAX_DEVICES)
    return -1;
  return device;
}

int bsg_driver_device(void) {
  int device = current_device();
  return device < 0 ? 0 : device;
}

int bsg_driver_memory(int device, CUcontext context, uint64_t *free_bytes, uint64_t *total_bytes) {
  fn_cuMemGetInfo_v2 info = FIND(cuMemGetInfo_v2);
  fn_cuCtxSetCurrent set = FIND(cuCtxSetCurrent);
  bool here = current_device() == device;
  CUcontext before = NULL;
  size_t bytes_free, bytes_total;
  CUresult result;

  if (!info || device < 0 || device >= BSG_MAX_DEVICES)
    return -ENODEV;
  if (!here) {
    before = bsg_driver_context();
    if (!context || !set || set(context) != CUDA_SUCCESS)
      return -ENODEV;
  }
  result = info(&bytes_free, &bytes_total);
  if (!here)
    set(before);
  if (result != CUDA_SUCCESS)
    return -ENODEV;
  *free_bytes = bytes_free;
  *total_bytes = bytes_total;
  return 0;
}

int bsg_driver_version(void) {
  fn_cuDriverGetVersion get = FIND(cuDriverGetVersion);
  int version = 0;
  return get && get(&version) == CUDA_SUCCESS ? version : 0;
}

void bsg_driver_describe(int device, struct bsg_device_fact *out) {
  fn_cuDeviceGetName get_name = FIND(cuDeviceGetName);
  fn_cuDeviceTotalMem_v2 get_total = FIND(cuDeviceTotalMem_v2);
  size_t total = 0;

  memset(out, 0, sizeof *out);
  out->device = device;
  if (!get_name || get_name(out->name, sizeof out->name, device) != CUDA_SUCCESS)
    strcpy(out->name, "unknown");
  out->name[sizeof out->name - 1] = '\0';
  if (get_total && get_total(&total, device) == CUDA_SUCCESS)
    out->total_bytes = total;
  out->driver_version = bsg_driver_version();
}

int bsg_driver_bus(int device, char *out, size_t room) {
  fn_cuDeviceGetPCIBusId get = FIND(cuDeviceGetPCIBusId);
  if (!get || get(out, (int)room, device) != CUDA_SUCCESS) {
    out[0] = '\0';
    return -ENODEV;
  }
  out[room - 1] = '\0';
  return 0;
}

int bsg_driver_uuid(int device, unsigned char out[16]) {
  fn_cuDeviceGetUuid_v2 get = FIND(cuDeviceGetUuid_v2);
  CUuuid uuid;
  if (!get || get(&uuid, device) != CUDA_SUCCESS)
    return -ENODEV;
  memcpy(out, uuid.bytes, sizeof uuid.bytes);
  return 0;
}

CUcontext bsg_driver_stream_context(CUstream stream, bool per_thread) {
  fn_cuStreamGetCtx get = per_thread ? FIND(cuStreamGetCtx_ptsz) : FIND(cuStreamGetCtx);
  CUcontext context = NULL;
  return get && get(stream, &context) == CUDA_SUCCESS ? context : NULL;
}

bool bsg_driver_capturing(CUstream stream, bool per_thread) {
  fn_cuStreamIsCapturing ask = per_thread ? FIND(cuStreamIsCapturing_ptsz) : FIND(cuStreamIsCapturing);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ask && ask(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUmemoryPool bsg_driver_pool(int device) {
  fn_cuDeviceGetMemPool get = FIND(cuDeviceGetMemPool);
  CUmemoryPool pool = NULL;
  return get && get(&pool, device) == CUDA_SUCCESS ? pool : NULL;
}

int bsg_driver_pool_bytes(CUmemoryPool pool, bool used, uint64_t *bytes) {
  fn_cuMemPoolGetAttribute get = FIND(cuMemPoolGetAttribute);
  cuuint64_t value = 0;
  if (!get ||
      get(pool, used ? CU_MEMPOOL_ATTR_USED_MEM_CURRENT : CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value) != CUDA_SUCCESS)
    return -ENOSYS;
  *bytes = value;
  return 0;
}

int bsg_driver_graph_bytes(int device, uint64_t *bytes) {
  fn_cuDeviceGetGraphMemAttribute get = FIND(cuDeviceGetGraphMemAttribute);
  cuuint64_t value = 0;
  if (!get || get(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value) != CUDA_SUCCESS)
    return -ENOSYS;
  *bytes = value;
  return 0;
}

uint64_t bsg_driver_size(CUdeviceptr address) {
  fn_cuMemGetAddressRange_v2 get = FIND(cuMemGetAddressRange_v2);
  CUdeviceptr base;
  size_t bytes = 0;
  return get && get(&base, &bytes, address) == CUDA_SUCCESS ? bytes : 0;
}

bool bsg_driver_primary_active(int device) {
  fn_cuDevicePrimaryCtxGetState get = FIND(cuDevicePrimaryCtxGetState);
  unsigned int flags;
  int active = 1;
  return !get || get(device, &flags, &active) != CUDA_SUCCESS || active;
}

CUcontext bsg_driver_green_context(CUgreenCtx green) {
  fn_cuCtxFromGreenCtx get = FIND(cuCtxFromGreenCtx);
  CUcontext context = NULL;
  return get && get(&context, green) == CUDA_SUCCESS ? context : NULL;
}

int bsg_driver_physical_device(CUmemGenericAllocationHandle handle, int *device) {
  fn_cuMemGetAllocationPropertiesFromHandle get = FIND(cuMemGetAllocationPropertiesFromHandle);
  CUmemAllocationProp properties = {0};
  if (!get || get(&properties, handle) != CUDA_SUCCESS)
    return -ENOSYS;
  *device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties.location.id < BSG_MAX_DEVICES
                ? properties.location.id
                : -1;
  return 0;
}
