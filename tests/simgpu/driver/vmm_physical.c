/*
 * vmm_physical.c - the physical half of virtual memory management: memory behind handles, and its way to other
 * processes. It takes from its device from cuMemCreate() until the last handle is released and the last mapping
 * (vmm_mapping.c) is gone, in either order. It belongs to the process, not to a context. Knows nothing of addresses.
 *
 * Physical memory is a memfd. A handle imported from this very process is one more reference to the same memory. From
 * another process it is memory that the other one is charged for (SIMGPU_MAPPED), even after that one has let go of it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm.h"

#define LEAST_UNIT (2ull << 20) /* as NVIDIA's driver has it */
#define NAME "simgpu-vmm-"      /* memfd, followed by the device */

static struct {
  struct physical *all; /* by handle */
  CUmemGenericAllocationHandle last;
} state;

uint64_t sim_physical_unit(void) {
  uint64_t granularity = sim_config()->granularity;
  return granularity > LEAST_UNIT ? granularity : LEAST_UNIT;
}

/* ---- references. Callers hold the lock. ---- */
struct physical *sim_physical_find(CUmemGenericAllocationHandle handle) {
  struct physical *p;
  HASH_FIND(hh, state.all, &handle, sizeof handle, p);
  return p && p->references ? p : NULL;
}

void sim_physical_let_go(struct physical *p) {
  if (p->references || p->mappings)
    return;
  HASH_DEL(state.all, p);
  sim_capacity_refund(p->device, p->kind, p->bytes);
  sim_journal_free(p->device, p->kind, p->bytes, p->handle);
  close(p->fd);
  free(p);
}

static struct physical *add(int fd, uint64_t bytes, int device, enum simgpu_kind kind,
                            const CUmemAllocationProp *prop) {
  struct physical *p = calloc(1, sizeof *p);
  struct stat status;
  if (!p || fstat(fd, &status)) {
    free(p);
    return NULL;
  }
  *p = (struct physical){.handle = ++state.last,
                         .prop = *prop,
                         .bytes = bytes,
                         .references = 1,
                         .device = device,
                         .fd = fd,
                         .inode = status.st_ino,
                         .kind = kind};
  HASH_ADD(hh, state.all, handle, sizeof p->handle, p);
  if (!SIM_ENTERED(p)) {
    free(p);
    return NULL;
  }
  return p;
}

static int open_memory(uint64_t bytes, int device) {
  char name[32];
  int fd;
  snprintf(name, sizeof name, NAME "%d", device);
  fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0)
    return -1;
  if (ftruncate(fd, (off_t)bytes)) {
    close(fd);
    return -1;
  }
  if (sim_config()->poison) {
    char *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (all != MAP_FAILED) {
      memset(all, 0xff, bytes);
      munmap(all, bytes);
    }
  }
  return fd;
}

/* ---- making and ending ---- */

/* CUDA_SUCCESS where memory of these properties can be had: on a device, or (kind SIMGPU_PINNED) on the host. */
static CUresult judge(const CUmemAllocationProp *prop, enum simgpu_kind *kind, int *device) {
  if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    return CUDA_ERROR_INVALID_VALUE;
  switch (prop->location.type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    *kind = SIMGPU_VMM;
    *device = prop->location.id;
    return sim_known_device(*device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
    *kind = SIMGPU_PINNED;
    *device = 0;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
  enum simgpu_kind kind;
  int device;
  CUresult result = sim_ready();
  (void)option;
  if (!result)
    result = out ? judge(prop, &kind, &device) : CUDA_ERROR_INVALID_VALUE;
  if (!result)
    *out = sim_physical_unit();
  return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  struct physical *p = NULL;
  enum simgpu_kind kind;
  const char *cause = NULL;
  int device, fd = -1;
  CUresult result = sim_ready();
  if (!result)
    result = judge(prop, &kind, &device);
  if (result)
    return result;
  if (!out || !bytes || bytes % sim_physical_unit() || flags)
    return CUDA_ERROR_INVALID_VALUE;

  sim_lock();
  if (sim_fault_due(kind == SIMGPU_VMM ? SIM_CALL_MEMORY : SIM_CALL_OTHER, bytes)) {
    cause = "fault";
  } else if (!sim_capacity_charge(device, kind, bytes)) {
    cause = "capacity";
  } else {
    fd = open_memory(bytes, device);
    p = fd < 0 ? NULL : add(fd, bytes, device, kind, prop);
    if (!p) {
      if (fd >= 0)
        close(fd);
      sim_capacity_refund(device, kind, bytes);
      cause = "host";
    }
  }
  sim_journal_alloc(device, kind, bytes, p ? p->handle : 0, cause);
  if (p)
    *out = p->handle;
  sim_unlock();
  return cause ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  struct physical *p;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  p = sim_physical_find(handle);
  if (p) {
    p->references--;
    sim_physical_let_go(p);
  }
  sim_unlock();
  return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle) {
  const struct physical *p;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  p = sim_physical_find(handle);
  if (p && out)
    *out = p->prop;
  sim_unlock();
  return p && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- between processes ---- */
CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  const struct physical *p;
  int fd = -1;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  p = sim_physical_find(handle);
  if (!p || !(p->prop.requestedHandleTypes & type))
    result = CUDA_ERROR_INVALID_VALUE;
  else
    fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
  sim_unlock();
  if (!result && fd < 0)
    result = CUDA_ERROR_UNKNOWN;
  if (!result)
    *(int *)out = fd;
  return result;
}

/* The device of a file descriptor that came from cuMemExportToShareableHandle(); -1 for another one. */
static int exported_device(int fd) {
  char path[32], target[64];
  ssize_t length;
  int device;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  length = readlink(path, target, sizeof target - 1);
  if (length < 0)
    return -1;
  target[length] = '\0';
  return sscanf(target, "/memfd:" NAME "%d", &device) == 1 && sim_known_device(device) ? device : -1;
}

/* Caller holds the lock. */
static CUresult import(int fd, CUmemGenericAllocationHandle *out) {
  struct stat status;
  struct physical *p, *next;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
  int device = exported_device(fd), own;
  if (device < 0 || fstat(fd, &status))
    return CUDA_ERROR_INVALID_VALUE;
  HASH_ITER(hh, state.all, p, next) {
    if (p->inode == status.st_ino) {
      p->references++;
      *out = p->handle;
      return CUDA_SUCCESS;
    }
  }
  prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
  own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  p = own < 0 ? NULL : add(own, (uint64_t)status.st_size, device, SIMGPU_MAPPED, &prop);
  if (!p) {
    if (own >= 0)
      close(own);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_capacity_charge(device, SIMGPU_MAPPED, p->bytes);
  *out = p->handle;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle,
                                        CUmemAllocationHandleType type) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  result = import((int)(intptr_t)handle, out);
  sim_unlock();
  return result;
}
