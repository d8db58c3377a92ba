/*
 * graph_memory.c - the memory that nodes of graphs stand for, and each device's reserve of it. Knows nothing of graphs.
 *
 * A memory node fixes an address when it is added; the memory is taken from a reserve of the device that all graphs
 * share, and returns to it when a free node is launched or a client frees the address. Only cuDeviceGraphMemTrim()
 * gives the reserve back. Memory that a launch left allocated outlives graph and executable.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

static struct { struct sim_reserve reserve[SIM_MAX_DEVICES]; } state;

/* ---- memory of nodes. Callers hold the lock, but for the entry points at the end. ---- */
static struct sim_reserve *reserve_of(int device) {
  struct sim_reserve *r = &state.reserve[device];
  r->device = device;
  r->kind = SIMGPU_GRAPH;
  return r;
}

CUresult sim_graph_memory_new(int device, uint64_t bytes, struct sim_graph_memory **out) {
  struct sim_graph_memory *m = calloc(1, sizeof *m);
  struct sim_place place;
  if (!m || bytes > 1ull << 46 || sim_space_take(device, SIM_POOL_DEVICE, bytes, &place)) {
    free(m);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  place.block->kind = SIMGPU_GRAPH;
  place.block->owner = m;
  place.block->absent = true;
  *m = (struct sim_graph_memory){.address = place.base, .bytes = bytes, .device = device, .references = 1};
  *out = m;
  return CUDA_SUCCESS;
}

void sim_graph_memory_unrefer(struct sim_graph_memory *m) {
  struct sim_place place;
  if (--m->references)
    return;
  if (sim_space_find(m->address, &place))
    sim_space_give(&place);
  free(m);
}

void sim_graph_memory_appear(struct sim_graph_memory *m) {
  struct sim_place place;
  if (!sim_space_find(m->address, &place) || !sim_reserve_use(reserve_of(m->device), m->bytes))
    return; /* neither can be: the address is ours, and the reserve was enlarged */
  place.block->absent = false;
  m->there = true;
  m->references++;
  if (sim_config()->poison)
    memset(place.host, 0xff, m->bytes);
  sim_journal_alloc(m->device, SIMGPU_GRAPH, m->bytes, m->address, NULL);
}

void sim_graph_memory_vanish(struct sim_graph_memory *m) {
  struct sim_place place;
  if (sim_space_find(m->address, &place))
    place.block->absent = true;
  m->there = false;
  sim_reserve_put_back(reserve_of(m->device), m->bytes);
  sim_journal_free(m->device, SIMGPU_GRAPH, m->bytes, m->address);
  sim_graph_memory_unrefer(m);
}

void sim_graph_release(const struct sim_place *place) {
  sim_graph_memory_vanish(place->block->owner);
}

static void vanish_if_there(const struct sim_place *place, void *unused) {
  (void)unused;
  if (place->block->kind == SIMGPU_GRAPH && !place->block->absent)
    sim_graph_memory_vanish(place->block->owner);
}

void sim_graph_drop(int device) {
  if (reserve_of(device)->used)
    sim_space_each(device, vanish_if_there, NULL);
  sim_reserve_trim(reserve_of(device), 0);
}

struct sim_graph_memory *sim_graph_memory_at(CUdeviceptr address) {
  struct sim_place place;
  bool found = sim_space_find(address, &place) && place.base == address && place.block->kind == SIMGPU_GRAPH;
  return found ? place.block->owner : NULL;
}

bool sim_graph_memory_reserve(const uint64_t *most) {
  for (int device = 0; device < sim_config()->devices; device++) {
    if (most[device] && !sim_reserve_grow(reserve_of(device), most[device]))
      return false;
  }
  return true;
}

/* ---- the reserve, for clients ---- */
CUresult cuDeviceGraphMemTrim(CUdevice device) {
  CUresult result = sim_ready_on(device);
  if (result)
    return result;
  sim_lock();
  sim_reserve_trim(reserve_of(device), 0);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
  const struct sim_reserve *r;
  CUresult result = sim_ready_on(device);
  if (result)
    return result;
  if (!value || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  r = reserve_of(device);
  *(cuuint64_t *)value = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT       ? r->used
                         : attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH        ? r->used_high
                         : attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? r->reserved
                                                                               : r->reserved_high;
  sim_unlock();
  return CUDA_SUCCESS;
}

/* A high-water mark can be set to 0, which restarts it from now. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
  bool used = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
  struct sim_reserve *r;
  CUresult result = sim_ready_on(device);
  if (result)
    return result;
  if (!value || *(const cuuint64_t *)value || (!used && attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH))
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  r = reserve_of(device);
  if (used)
    r->used_high = r->used;
  else
    r->reserved_high = r->reserved;
  sim_unlock();
  return CUDA_SUCCESS;
}
