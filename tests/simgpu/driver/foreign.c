/*
 * foreign.c - memory that belongs to somebody else and is only mapped here: device memory of another process (CUDA IPC)
 * and memory of another interface (external memory). It takes nothing from a device; SIMGPU_MAPPED counts it: what an
 * IPC handle stands for while it is open, and what external memory was imported, whether its buffers are mapped or not.
 *
 * What is mapped has an address and bytes, but not those of its owner: the content is not shared.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* What lies in a CUipcMemHandle. */
struct ticket {
  char magic[8];
  int32_t pid, device;
  uint64_t base, bytes;
  char unused[CU_IPC_HANDLE_SIZE - 32];
};

static const char magic[8] = "simgpu";

/* A handle that a context has opened. */
struct opened {
  struct ticket ticket;
  CUcontext context;
  uint64_t address, count; /* count: opened so many times more than closed */
  struct opened *next;
};

struct CUextMemory_st {
  uint64_t bytes;
  int device, fd;
  CUexternalMemory next;
};

static struct {
  struct opened *opened;
  CUexternalMemory external;
} state;

/* Addresses for memory of somebody else; 0 when the host has none. Caller holds the lock. */
static uint64_t map(CUcontext context, uint64_t bytes, void *owner) {
  struct sim_place place;
  if (bytes > 1ull << 46 || sim_space_take(context->device, SIM_POOL_DEVICE, bytes, &place))
    return 0;
  place.block->kind = SIMGPU_MAPPED;
  place.block->context = context;
  place.block->owner = owner;
  return place.base;
}

/* ---- CUDA IPC ---- */
CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
  struct ticket ticket = {.pid = getpid()};
  struct sim_place place;
  bool found;
  CUresult result = sim_ready();
  if (result)
    return result;
  memcpy(ticket.magic, magic, sizeof magic);
  sim_lock();
  found = sim_space_find(address, &place) && place.block->kind == SIMGPU_PLAIN;
  if (found) {
    ticket.device = place.block->device;
    ticket.base = place.base;
    ticket.bytes = place.block->bytes;
  }
  sim_unlock();
  if (!found || !out)
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(out, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

int simgpu_ipc_handle(int device, uint64_t bytes, void *handle) {
  static atomic_uint_least64_t base = 4096; /* so that two of them differ */
  struct ticket ticket = {.device = device, .bytes = bytes};
  if (!sim_known_device(device) || !bytes || !handle)
    return -1;
  memcpy(ticket.magic, magic, sizeof magic);
  ticket.base = atomic_fetch_add(&base, 4096);
  memcpy(handle, &ticket, sizeof ticket);
  return 0;
}

static CUresult open_handle(CUdeviceptr *out, const CUipcMemHandle *handle, unsigned flags) {
  struct ticket ticket;
  struct opened *o, *fresh;
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  memcpy(&ticket, handle, sizeof ticket);
  if (!out || (flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ||
      memcmp(ticket.magic, magic, sizeof magic) != 0 || !sim_known_device(ticket.device))
    return CUDA_ERROR_INVALID_VALUE;
  if (ticket.pid == getpid())
    return CUDA_ERROR_INVALID_CONTEXT;
  fresh = calloc(1, sizeof *fresh);
  if (!fresh)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *fresh = (struct opened){.ticket = ticket, .context = context};
  sim_lock();
  for (o = state.opened; o; o = o->next) {
    if (o->context == context && memcmp(&o->ticket, &ticket, sizeof ticket) == 0)
      break;
  }
  if (!o) {
    fresh->address = map(context, ticket.bytes, fresh);
    if (fresh->address) {
      o = fresh;
      fresh = NULL;
      o->next = state.opened;
      state.opened = o;
      sim_capacity_charge(context->device, SIMGPU_MAPPED, ticket.bytes);
    }
  }
  if (o) {
    o->count++;
    *out = o->address;
  } else {
    result = CUDA_ERROR_MAP_FAILED;
  }
  sim_unlock();
  free(fresh);
  return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
  return open_handle(out, &handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
  return open_handle(out, &handle, flags);
}

void sim_foreign_release(const struct sim_place *place) {
  struct opened *o = place->block->owner, **link;
  if (o) {
    for (link = &state.opened; *link != o; link = &(*link)->next)
      ;
    *link = o->next;
    sim_capacity_refund(place->block->device, SIMGPU_MAPPED, o->ticket.bytes);
    free(o);
  }
  sim_space_give(place);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  struct sim_place place;
  struct opened *o = NULL;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (sim_space_find(address, &place) && place.base == address && place.block->kind == SIMGPU_MAPPED)
    o = place.block->owner;
  if (!o)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (--o->count == 0)
    sim_foreign_release(&place);
  sim_unlock();
  return result;
}

/* ---- external memory ---- */
CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
  CUexternalMemory memory;
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  if (!out || !desc || !desc->size || desc->size > 1ull << 46)
    return CUDA_ERROR_INVALID_VALUE;
  if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
    return CUDA_ERROR_NOT_SUPPORTED;
  memory = calloc(1, sizeof *memory);
  if (!memory)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = (struct CUextMemory_st){.bytes = desc->size, .device = context->device, .fd = desc->handle.fd};
  *out = memory;
  sim_lock();
  memory->next = state.external;
  state.external = memory;
  sim_capacity_charge(memory->device, SIMGPU_MAPPED, memory->bytes);
  sim_unlock();
  return CUDA_SUCCESS;
}

/* The link to external memory. Caller holds the lock. */
static CUexternalMemory *external_at(CUexternalMemory memory) {
  CUexternalMemory *link;
  for (link = &state.external; *link && *link != memory; link = &(*link)->next)
    ;
  return link;
}

/* A range of external memory at an address that cuMemFree() gives back. */
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory handle,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc) {
  CUexternalMemory memory;
  CUcontext context;
  CUresult result = sim_current(&context);
  uint64_t address = 0;
  if (result)
    return result;
  if (!out || !desc || !desc->size || desc->flags)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  memory = *external_at(handle);
  if (!memory)
    result = CUDA_ERROR_INVALID_HANDLE;
  else if (desc->offset > memory->bytes || desc->size > memory->bytes - desc->offset)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (!(address = map(context, desc->size, NULL)))
    result = CUDA_ERROR_MAP_FAILED;
  sim_unlock();
  if (!result)
    *out = address;
  return result;
}

CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *out, CUexternalMemory handle,
                                                 const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc) {
  CUresult result = sim_ready();
  bool known;
  if (result)
    return result;
  sim_lock();
  known = *external_at(handle) != NULL;
  sim_unlock();
  if (!known)
    return CUDA_ERROR_INVALID_HANDLE;
  return desc ? sim_array_map(out, &desc->arrayDesc, desc->numLevels) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDestroyExternalMemory(CUexternalMemory handle) {
  CUexternalMemory *link, memory;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  link = external_at(handle);
  memory = *link;
  if (memory) {
    *link = memory->next;
    sim_capacity_refund(memory->device, SIMGPU_MAPPED, memory->bytes);
  }
  sim_unlock();
  if (!memory)
    return CUDA_ERROR_INVALID_HANDLE;
  close(memory->fd); /* it was handed over at the import */
  free(memory);
  return CUDA_SUCCESS;
}
