/*
 * vmm_mapping.c - the addresses of virtual memory management: reserved ranges, and mappings of physical memory
 * (vmm_physical.c) into them. A mapping keeps its memory for as long as it is there.
 *
 * With SIMGPU_PROTECT a reserved range stays unreadable and the driver reaches what is mapped there through a second
 * range of the same size (reservation.host).
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "vmm.h"

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

static struct { struct reservation *reservations; } state;

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
  if (alignment < sim_physical_unit())
    alignment = sim_physical_unit();
  if (!out || !bytes || bytes % sim_physical_unit() || flags || (alignment & (alignment - 1)) || alignment > 1ull << 40)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes > 1ull << 46)
    return CUDA_ERROR_OUT_OF_MEMORY;
  r = calloc(1, sizeof *r);
  address = r ? reserve(bytes, alignment) : NULL;
  host = address && sim_config()->protect ? reserve(bytes, sim_physical_unit()) : address;
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
  if (!bytes || address % sim_physical_unit() || bytes % sim_physical_unit() || offset || flags)
    return CUDA_ERROR_INVALID_VALUE;
  m = calloc(1, sizeof *m);
  if (!m)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_lock();
  p = sim_physical_find(handle);
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
      sim_physical_let_go(m->physical);
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
