/*
 * driver.c - see driver.h. Depends on the host's look-up. Never goes through our own wrappers, never creates a context.
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
  X(cuDriverGetVersion, PFN_cuDriverGetVersion_v2020)

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
  _Atomic(CUcontext) contexts[BSG_MAX_DEVICES];
} state;

static void *find(enum entry_id id) {
  void *entry = atomic_load_explicit(&state.entries[id], memory_order_acquire);
  if (!entry && (entry = bsg_cuda_host.driver_entry(symbols[id])))
    atomic_store_explicit(&state.entries[id], entry, memory_order_release);
  return entry;
}
#define FIND(symbol) ((fn_##symbol)find(ENTRY_##symbol))

int bsg_driver_device(void) {
  fn_cuCtxGetDevice get = FIND(cuCtxGetDevice);
  CUdevice device;
  if (!get || get(&device) != CUDA_SUCCESS || device < 0 || device >= BSG_MAX_DEVICES)
    return 0;
  return device;
}

void bsg_driver_remember(int device) {
  fn_cuCtxGetCurrent get = FIND(cuCtxGetCurrent);
  CUcontext context = NULL;
  if (get && get(&context) == CUDA_SUCCESS && context)
    atomic_store(&state.contexts[device], context);
}

/* The device of this very context: bsg_driver_device() says 0 also where there is none. */
static bool is_current(int device) {
  fn_cuCtxGetDevice get = FIND(cuCtxGetDevice);
  CUdevice current;
  return get && get(&current) == CUDA_SUCCESS && current == device;
}

int bsg_driver_memory(int device, uint64_t *free_bytes, uint64_t *total_bytes) {
  fn_cuMemGetInfo_v2 info = FIND(cuMemGetInfo_v2);
  fn_cuCtxGetCurrent get = FIND(cuCtxGetCurrent);
  fn_cuCtxSetCurrent set = FIND(cuCtxSetCurrent);
  CUcontext before = NULL, wanted = NULL;
  size_t bytes_free, bytes_total;
  CUresult result;

  if (!info || device < 0 || device >= BSG_MAX_DEVICES)
    return -ENODEV;
  if (!is_current(device)) {
    wanted = atomic_load(&state.contexts[device]);
    if (!wanted || !get || !set || get(&before) != CUDA_SUCCESS || set(wanted) != CUDA_SUCCESS)
      return -ENODEV;
  }
  result = info(&bytes_free, &bytes_total);
  if (wanted)
    set(before);
  if (result != CUDA_SUCCESS)
    return -ENODEV;
  *free_bytes = bytes_free;
  *total_bytes = bytes_total;
  return 0;
}

void bsg_driver_describe(int device, struct bsg_device_fact *out) {
  fn_cuDeviceGetName get_name = FIND(cuDeviceGetName);
  fn_cuDeviceTotalMem_v2 get_total = FIND(cuDeviceTotalMem_v2);
  fn_cuDriverGetVersion get_version = FIND(cuDriverGetVersion);
  size_t total = 0;

  memset(out, 0, sizeof *out);
  out->device = device;
  if (!get_name || get_name(out->name, sizeof out->name, device) != CUDA_SUCCESS)
    strcpy(out->name, "unknown");
  out->name[sizeof out->name - 1] = '\0';
  if (get_total && get_total(&total, device) == CUDA_SUCCESS)
    out->total_bytes = total;
  if (!get_version || get_version(&out->driver_version) != CUDA_SUCCESS)
    out->driver_version = 0;
}

void bsg_driver_forget(void) {
  for (int device = 0; device < BSG_MAX_DEVICES; device++)
    atomic_store(&state.contexts[device], NULL);
}
