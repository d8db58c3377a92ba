/* fake.c - see fake.h. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

struct fake fake = {.present = true, .capacity = (uint64_t)1 << 30, .lock = PTHREAD_MUTEX_INITIALIZER};
__thread int fake_device;

/* Bytes by address; addresses are slots times a stride, so that a free finds its slot at once. */
#define SLOTS 65536
#define STRIDE ((uint64_t)2 << 20)
static struct {
  uint64_t bytes[SLOTS];
  uint32_t free_slots[SLOTS];
  uint32_t free_count, fresh;
} space;

static CUresult allocate(uint64_t *address, uint64_t bytes) {
  CUresult result = CUDA_SUCCESS;
  uint32_t slot;

  pthread_mutex_lock(&fake.lock);
  fake.allocs++;
  if (fake.next_alloc != CUDA_SUCCESS) {
    result = fake.next_alloc;
    fake.next_alloc = CUDA_SUCCESS;
  } else if (bytes == 0)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (fake.used + bytes > fake.capacity || (space.free_count == 0 && space.fresh == SLOTS))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  else {
    slot = fake.fixed_address ? 0 : space.free_count ? space.free_slots[--space.free_count] : space.fresh++;
    space.bytes[slot] = bytes;
    fake.used += bytes;
    if (fake.used > fake.used_peak)
      fake.used_peak = fake.used;
    *address = (slot + 1) * STRIDE;
  }
  pthread_mutex_unlock(&fake.lock);
  return result;
}

static CUresult release(uint64_t address) {
  CUresult result = CUDA_SUCCESS;
  uint64_t slot = address / STRIDE - 1;

  pthread_mutex_lock(&fake.lock);
  fake.frees++;
  fake.last_free = address;
  if (fake.next_free != CUDA_SUCCESS) {
    result = fake.next_free;
    fake.next_free = CUDA_SUCCESS;
  } else if (address == 0)
    result = CUDA_SUCCESS;
  else if (address % STRIDE != 0 || slot >= SLOTS || space.bytes[slot] == 0)
    result = CUDA_ERROR_INVALID_VALUE;
  else {
    fake.used -= space.bytes[slot];
    space.bytes[slot] = 0;
    space.free_slots[space.free_count++] = (uint32_t)slot;
  }
  pthread_mutex_unlock(&fake.lock);
  return result;
}

static CUresult get_device(CUdevice *device) {
  *device = fake_device;
  return CUDA_SUCCESS;
}

static CUresult get_name(char *name, int room, CUdevice device) {
  snprintf(name, (size_t)room, "Fake %d", device);
  return CUDA_SUCCESS;
}

static CUresult total_memory(size_t *bytes, CUdevice device) {
  (void)device;
  *bytes = fake.capacity;
  return CUDA_SUCCESS;
}

static CUresult driver_version(int *version) {
  *version = 12090;
  return CUDA_SUCCESS;
}

static CUresult alloc_old(CUdeviceptr_v1 *address, unsigned int bytes) {
  uint64_t wide = 0;
  CUresult result = allocate(&wide, bytes);
  if (result == CUDA_SUCCESS)
    *address = (CUdeviceptr_v1)wide;
  return result;
}

static CUresult alloc(CUdeviceptr *address, size_t bytes) {
  uint64_t wide = 0;
  CUresult result = allocate(&wide, bytes);
  if (result == CUDA_SUCCESS)
    *address = wide;
  return result;
}

static CUresult alloc_pitch_old(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                                unsigned int element) {
  uint64_t wide = 0;
  unsigned int rounded = (width + 511) / 512 * 512;
  CUresult result = element ? allocate(&wide, (uint64_t)rounded * height) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    *address = (CUdeviceptr_v1)wide;
    *pitch = rounded;
  }
  return result;
}

static CUresult alloc_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element) {
  uint64_t wide = 0;
  size_t rounded = (width + 511) / 512 * 512;
  CUresult result = element ? allocate(&wide, rounded * height) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    *address = wide;
    *pitch = rounded;
  }
  return result;
}

static CUresult alloc_managed(CUdeviceptr *address, size_t bytes, unsigned int flags) {
  return flags ? alloc(address, bytes) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_old(CUdeviceptr_v1 address) {
  return release(address);
}

static CUresult free_new(CUdeviceptr address) {
  return release(address);
}

static CUresult info(size_t *free_bytes, size_t *total_bytes) {
  pthread_mutex_lock(&fake.lock);
  *free_bytes = fake.capacity - fake.used;
  *total_bytes = fake.capacity;
  pthread_mutex_unlock(&fake.lock);
  return CUDA_SUCCESS;
}

static CUresult info_old(unsigned int *free_bytes, unsigned int *total_bytes) {
  size_t bytes_free, bytes_total;
  info(&bytes_free, &bytes_total);
  *free_bytes = (unsigned int)bytes_free;
  *total_bytes = (unsigned int)bytes_total;
  return CUDA_SUCCESS;
}

void *fake_entry(const char *symbol) {
  static const struct {
    const char *symbol;
    void *entry;
  } entries[] = {{"cuCtxGetDevice", get_device},
                 {"cuDeviceGetName", get_name},
                 {"cuDeviceTotalMem_v2", total_memory},
                 {"cuDriverGetVersion", driver_version},
                 {"cuMemAlloc", alloc_old},
                 {"cuMemAlloc_v2", alloc},
                 {"cuMemAllocPitch", alloc_pitch_old},
                 {"cuMemAllocPitch_v2", alloc_pitch},
                 {"cuMemAllocManaged", alloc_managed},
                 {"cuMemFree", free_old},
                 {"cuMemFree_v2", free_new},
                 {"cuMemGetInfo", info_old},
                 {"cuMemGetInfo_v2", info}};
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
    if (strcmp(symbol, entries[i].symbol) == 0)
      return entries[i].entry;
  return NULL;
}

/* ---- the host ---- */

static bool active(void) {
  return !fake.off;
}

static void *entry(const char *symbol) {
  if (!fake.present)
    return NULL;
  return fake.entry ? fake.entry(symbol) : fake_entry(symbol);
}

static uint64_t memory_limit(void) {
  return fake.limit;
}
static struct bsg_where where(void) {
  return fake.where;
}
static bool waiting(void) {
  return fake.waiting;
}

static void device(const struct bsg_device_fact *fact) {
  fake.devices++;
  fake.last_device = *fact;
}

static void refused(const struct bsg_alloc_fact *fact) {
  pthread_mutex_lock(&fake.lock);
  fake.refusals++;
  fake.last_refused = *fact;
  pthread_mutex_unlock(&fake.lock);
}

static void granted(const struct bsg_alloc_fact *fact) {
  pthread_mutex_lock(&fake.lock);
  fake.grants++;
  fake.last_granted = *fact;
  pthread_mutex_unlock(&fake.lock);
}

static void mark(const struct bsg_mark_fact *fact) {
  pthread_mutex_lock(&fake.lock);
  fake.marks++;
  fake.last_mark = *fact;
  pthread_mutex_unlock(&fake.lock);
}

static void unhooked(const char *name, int version) {
  (void)name;
  fake.unhooked++;
  fake.last_unhooked_version = version;
}

const struct bsg_cuda_host bsg_cuda_host = {
    .active = active,
    .driver_entry = entry,
    .next_entry = entry,
    .memory_limit = memory_limit,
    .where = where,
    .waiting = waiting,
    .device = device,
    .refused = refused,
    .granted = granted,
    .mark = mark,
    .unhooked = unhooked,
};
