/*
 * vmm.c - virtual memory management: reserved addresses, physical memory behind handles, and mappings of one onto the
 * other. Physical memory takes from its device from cuMemCreate() until the last handle is released and the last
 * mapping is gone, in either order. It belongs to the process, not to a context.
 *
 * Physical memory is a memfd, mapped into the reserved addresses. With SIMGPU_PROTECT these stay unreadable and the
 * driver reaches the memory through a second range of the same size (reservation.host).
 *
 * A handle imported from this very process is one more reference to the same memory. From another process it is memory
 * that the other one is charged for (SIMGPU_MAPPED), even after that one has let go of it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "internal.h"

#define LEAST_UNIT (2ull << 20) /* as NVIDIA's driver has it */
#define NAME "simgpu-vmm-"      /* memfd, followed by the device */

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

struct mapping {
  uint64_t base, bytes;
  struct physical *physical;
  CUmemAccess_flags access;
  struct mapping *next; /* by rising address */
};

struct reservation {
  uint64_t base, bytes;
  char *host;
  struct mapping *mappings;
  struct reservation *next;
};

static struct {
  struct physical *physical; /* by handle */
  struct reservation *reservations;
  CUmemGenericAllocationHandle last;
} state;

static uint64_t unit(void) {
  uint64_t granularity = sim_config()->granularity;
  return granularity > LEAST_UNIT ? granularity : LEAST_UNIT;
}

/* ---- physical memory. Callers hold the lock. ---- */
static struct physical *find_handle(CUmemGenericAllocationHandle handle) {
  struct physical *p;
  HASH_FIND(hh, state.physical, &handle, sizeof handle, p);
  return p && p->references ? p : NULL;
}

/* Frees it once nothing refers to it. */
static void let_go(struct physical *p) {
  if (p->references || p->mappings)
    return;
  HASH_DEL(state.physical, p);
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
  HASH_ADD(hh, state.physical, handle, sizeof p->handle, p);
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
    *out = unit();
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
  if (!out || !bytes || bytes % unit() || flags)
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
  p = find_handle(handle);
  if (p) {
    p->references--;
    let_go(p);
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
  p = find_handle(handle);
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
  p = find_handle(handle);
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
static struct physical *import(int fd) {
  struct stat status;
  struct physical *p, *next;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
  int device = exported_device(fd), own;
  if (device < 0 || fstat(fd, &status))
    return NULL;
  HASH_ITER(hh, state.physical, p, next) {
    if (p->inode == status.st_ino) {
      p->references++;
      return p;
    }
  }
  prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
  own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  p = own < 0 ? NULL : add(own, (uint64_t)status.st_size, device, SIMGPU_MAPPED, &prop);
  if (p)
    sim_capacity_charge(device, SIMGPU_MAPPED, p->bytes);
  else if (own >= 0)
    close(own);
  return p;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle,
                                        CUmemAllocationHandleType type) {
  const struct physical *p;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  p = import((int)(intptr_t)handle);
  if (p)
    *out = p->handle;
  sim_unlock();
  return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- addresses ---- */

/* Unreadable addresses, aligned; NULL when the host has none. */
static char *reserve(uint64_t bytes, uint64_t alignment) {
  uint64_t span = bytes + alignment, head;
  char *found = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED)
    return NULL;
  head = sim_round_up((uintptr_t)found, alignment) - (uintptr_t)found;
  if (head)
    munmap(found, head);
  munmap(found + head + bytes, span - head - bytes);
  return found + head;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  struct reservation *r;
  char *address, *host;
  CUresult result = sim_ready();
  (void)hint;
  if (result)
    return result;
  if (alignment < unit())
    alignment = unit();
  if (!out || !bytes || bytes % unit() || flags || (alignment & (alignment - 1)) || alignment > 1ull << 40)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > 1ull << 46)
    return CUDA_ERROR_OUT_OF_MEMORY;
  r = calloc(1, sizeof *r);
  address = r ? reserve(bytes, alignment) : NULL;
  host = address && sim_config()->protect ? reserve(bytes, unit()) : address;
  if (!host) {
    if (address)
      munmap(address, bytes);
    free(r);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *r = (struct reservation){.base = (uintptr_t)address, .bytes = bytes, .host = host};
  *out = r->base;
  sim_lock();
  r->next = state.reservations;
  state.reservations = r;
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  struct reservation **link, *r;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  for (link = &state.reservations; *link && (*link)->base != address; link = &(*link)->next)
    ;
  r = *link;
  if (!r || r->bytes != bytes || r->mappings)
    r = NULL;
  else
    *link = r->next;
  sim_unlock();
  if (!r)
    return CUDA_ERROR_INVALID_VALUE;
  munmap((void *)(uintptr_t)r->base, r->bytes);
  if ((uintptr_t)r->host != r->base)
    munmap(r->host, r->bytes);
  free(r);
  return CUDA_SUCCESS;
}

/* ---- mappings. Callers hold the lock. ---- */
static struct reservation *reservation_of(uint64_t address, uint64_t bytes) {
  for (struct reservation *r = state.reservations; r; r = r->next) {
    if (address >= r->base && address - r->base < r->bytes)
      return bytes <= r->bytes - (address - r->base) ? r : NULL;
  }
  return NULL;
}

/* The link to the first mapping that ends behind an address. */
static struct mapping **link_at(struct reservation *r, uint64_t address) {
  struct mapping **link = &r->mappings;
  while (*link && (*link)->base + (*link)->bytes <= address)
    link = &(*link)->next;
  return link;
}

static struct mapping *mapping_of(uint64_t address, struct reservation **reservation) {
  struct reservation *r = reservation_of(address, 1);
  struct mapping *m = r ? *link_at(r, address) : NULL;
  *reservation = r;
  return m && m->base <= address ? m : NULL;
}

/* The first mapping of a range that whole mappings cover without a gap; NULL for another range. */
static struct mapping **whole(uint64_t address, uint64_t bytes) {
  struct reservation *r = bytes ? reservation_of(address, bytes) : NULL;
  struct mapping **first = r ? link_at(r, address) : NULL;
  uint64_t at = address;
  if (!r)
    return NULL;
  for (struct mapping *m = *first; m && m->base == at && at < address + bytes; m = m->next)
    at += m->bytes;
  return at == address + bytes ? first : NULL;
}

static int map(struct reservation *r, uint64_t address, uint64_t bytes, int fd) {
  void *at = r->host + (address - r->base);
  bool hidden = (uintptr_t)r->host != r->base;
  int protection = hidden ? PROT_READ | PROT_WRITE : PROT_NONE;
  return mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED ? -1 : 0;
}

static void unmap(struct reservation *r, uint64_t address, uint64_t bytes) {
  mmap(r->host + (address - r->base), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  struct reservation *r;
  struct physical *p;
  struct mapping *m, **link;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!bytes || address % unit() || bytes % unit() || offset || flags)
    return CUDA_ERROR_INVALID_VALUE;
  m = calloc(1, sizeof *m);
  if (!m)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_lock();
  p = find_handle(handle);
  r = reservation_of(address, bytes);
  link = r ? link_at(r, address) : NULL;
  if (!p || !r || bytes > p->bytes || (*link && (*link)->base < address + bytes)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (map(r, address, bytes, p->fd)) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    *m = (struct mapping){.base = address, .bytes = bytes, .physical = p, .next = *link};
    *link = m;
    p->mappings++;
    m = NULL;
  }
  sim_unlock();
  free(m);
  return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  struct mapping **link, *m;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  link = whole(address, bytes);
  if (link) {
    unmap(reservation_of(address, bytes), address, bytes);
    while (*link && (*link)->base < address + bytes) {
      m = *link;
      *link = m->next;
      m->physical->mappings--;
      let_go(m->physical);
      free(m);
    }
  }
  sim_unlock();
  return link ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_access(CUdeviceptr address, uint64_t bytes, CUmemAccess_flags access) {
  struct mapping **first = whole(address, bytes);
  struct reservation *r = reservation_of(address, bytes);
  if (!first)
    return CUDA_ERROR_INVALID_VALUE;
  for (struct mapping *m = *first; m && m->base < address + bytes; m = m->next)
    m->access = access;
  if ((uintptr_t)r->host == r->base)
    mprotect(r->host + (address - r->base), bytes, access ? PROT_READ | PROT_WRITE : PROT_NONE);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!desc || !count)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  for (size_t i = 0; i < count && !result; i++)
    result = set_access(address, bytes, desc[i].flags);
  sim_unlock();
  return result;
}

CUresult cuMemGetAccess(unsigned long long *out, const CUmemLocation *location, CUdeviceptr address) {
  struct reservation *r;
  const struct mapping *m;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || !location)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  m = mapping_of(address, &r);
  if (m)
    *out = m->access;
  sim_unlock();
  return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
  struct reservation *r;
  struct mapping *m;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  m = mapping_of((uintptr_t)address, &r);
  if (m) {
    m->physical->references++;
    *out = m->physical->handle;
  }
  sim_unlock();
  return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- for the other files ---- */
char *sim_vmm_reach(uint64_t address, uint64_t bytes) {
  struct reservation *r = reservation_of(address, bytes);
  uint64_t at = address;
  if (!r)
    return NULL;
  for (const struct mapping *m = *link_at(r, address); m && m->base <= at && at < address + bytes; m = m->next) {
    if (!m->access)
      return NULL;
    at = m->base + m->bytes;
  }
  return at >= address + bytes ? r->host + (address - r->base) : NULL;
}

bool sim_vmm_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device) {
  struct reservation *r;
  const struct mapping *m = mapping_of(address, &r);
  if (!m)
    return false;
  *base = m->base;
  *bytes = m->bytes;
  *device = m->physical->device;
  return true;
}
