/*
 * graph.c - graphs, as far as they allocate: memory nodes, instantiation and launch. Other nodes are empty ones, as
 * nothing here is executed but memory.
 *
 * A memory node fixes an address when it is added; the memory is taken at launch (or upload) from a reserve of the
 * device that all graphs share, and returns to it when a free node is launched or a client frees the address. Only
 * cuDeviceGraphMemTrim() gives the reserve back. Memory that a launch left allocated outlives graph and executable.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* What an allocation node stands for. */
struct memory {
  CUdeviceptr address;
  uint64_t bytes;
  int device;
  unsigned references; /* nodes, steps of executables, and 1 while it is there */
  bool there, planned; /* planned: would be there, while a launch is thought through */
};

struct CUgraphNode_st {
  CUgraphNode next;
  CUgraph graph;
  CUgraphNodeType type;
  struct memory *memory;
  CUDA_MEM_ALLOC_NODE_PARAMS params;
};

struct CUgraph_st {
  CUgraph next;
  CUgraphNode first, last;
  size_t nodes;
  bool allocates;
};

struct step {
  CUgraphNodeType type;
  struct memory *memory;
};

struct CUgraphExec_st {
  CUgraphExec next;
  CUgraph graph; /* NULL once that is destroyed */
  unsigned long long flags;
  int device;
  size_t steps;
  struct step step[];
};

static struct {
  CUgraph graphs;
  CUgraphExec executables;
  struct sim_reserve reserve[SIM_MAX_DEVICES];
} state;

/* ---- memory of nodes. Callers hold the lock. ---- */
static struct sim_reserve *reserve_of(int device) {
  struct sim_reserve *r = &state.reserve[device];
  r->device = device;
  r->kind = SIMGPU_GRAPH;
  return r;
}

static void unrefer(struct memory *m) {
  struct sim_place place;
  if (--m->references)
    return;
  if (sim_space_find(m->address, &place))
    sim_space_give(&place);
  free(m);
}

static void appear(struct memory *m) {
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

static void vanish(struct memory *m) {
  struct sim_place place;
  if (sim_space_find(m->address, &place))
    place.block->absent = true;
  m->there = false;
  sim_reserve_put_back(reserve_of(m->device), m->bytes);
  sim_journal_free(m->device, SIMGPU_GRAPH, m->bytes, m->address);
  unrefer(m);
}

void sim_graph_release(const struct sim_place *place) {
  vanish(place->block->owner);
}

static void vanish_if_there(const struct sim_place *place, void *unused) {
  (void)unused;
  if (place->block->kind == SIMGPU_GRAPH && !place->block->absent)
    vanish(place->block->owner);
}

void sim_graph_drop(int device) {
  if (reserve_of(device)->used)
    sim_space_each(device, vanish_if_there, NULL);
  sim_reserve_trim(reserve_of(device), 0);
}

static struct memory *memory_at(CUdeviceptr address) {
  struct sim_place place;
  bool found = sim_space_find(address, &place) && place.base == address && place.block->kind == SIMGPU_GRAPH;
  return found ? place.block->owner : NULL;
}

/* ---- graphs and nodes. Callers hold the lock. ---- */
bool sim_graph_known(CUgraph graph) {
  for (CUgraph g = state.graphs; g; g = g->next) {
    if (g == graph)
      return true;
  }
  return false;
}

CUgraph sim_graph_new(void) {
  CUgraph graph = calloc(1, sizeof *graph);
  if (!graph)
    return NULL;
  graph->next = state.graphs;
  state.graphs = graph;
  return graph;
}

static bool node_known(CUgraphNode node) {
  for (CUgraph g = state.graphs; g; g = g->next) {
    for (CUgraphNode n = g->first; n; n = n->next) {
      if (n == node)
        return true;
    }
  }
  return false;
}

static CUgraphNode add(CUgraph graph, CUgraphNodeType type, struct memory *memory) {
  CUgraphNode node = calloc(1, sizeof *node);
  if (!node)
    return NULL;
  node->graph = graph;
  node->type = type;
  node->memory = memory;
  if (memory)
    memory->references++;
  *(graph->last ? &graph->last->next : &graph->first) = node;
  graph->last = node;
  graph->nodes++;
  graph->allocates |= type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  return node;
}

CUresult sim_graph_add_alloc(CUgraph graph, int device, uint64_t bytes, CUdeviceptr *out, CUgraphNode *node) {
  struct memory *memory;
  struct sim_place place;
  if (!bytes)
    return CUDA_ERROR_INVALID_VALUE;
  memory = calloc(1, sizeof *memory);
  if (!memory || bytes > 1ull << 46 || sim_space_take(device, SIM_POOL_DEVICE, bytes, &place)) {
    free(memory);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  place.block->kind = SIMGPU_GRAPH;
  place.block->owner = memory;
  place.block->absent = true;
  *memory = (struct memory){.address = place.base, .bytes = bytes, .device = device};
  *node = add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, memory);
  if (!*node) {
    sim_space_give(&place);
    free(memory);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = memory->address;
  return CUDA_SUCCESS;
}

CUresult sim_graph_add_free(CUgraph graph, CUdeviceptr address, CUgraphNode *node) {
  struct memory *memory = memory_at(address);
  if (!memory)
    return CUDA_ERROR_INVALID_VALUE;
  *node = add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, memory);
  return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_graph_delete(CUgraph graph) {
  CUgraph *link;
  CUgraphNode node, next;
  for (link = &state.graphs; *link != graph; link = &(*link)->next)
    ;
  *link = graph->next;
  for (CUgraphExec e = state.executables; e; e = e->next) {
    if (e->graph == graph)
      e->graph = NULL;
  }
  for (node = graph->first; node; node = next) {
    next = node->next;
    if (node->memory)
      unrefer(node->memory);
    free(node);
  }
  free(graph);
}

/* ---- building ---- */
CUresult cuGraphCreate(CUgraph *out, unsigned int flags) {
  CUgraph graph;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || flags)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  graph = sim_graph_new();
  sim_unlock();
  if (!graph)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *out = graph;
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (sim_graph_known(graph))
    sim_graph_delete(graph);
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

/* Adds a node of any of the three types; what depends on what changes nothing, as nodes run in the order of adding. */
static CUresult add_node(CUgraphNode *out, CUgraph graph, CUgraphNodeType type, CUDA_MEM_ALLOC_NODE_PARAMS *alloc,
                         CUdeviceptr address) {
  const CUmemLocation *where = alloc ? &alloc->poolProps.location : NULL;
  CUgraphNode node = NULL;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!out || (alloc && (where->type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_known_device(where->id) ||
                         alloc->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED)))
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  if (!sim_graph_known(graph)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    result = sim_graph_add_alloc(graph, where->id, alloc->bytesize, &alloc->dptr, &node);
    if (!result)
      node->params = *alloc;
  } else if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    result = sim_graph_add_free(graph, address, &node);
  } else if (!(node = add(graph, type, NULL))) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_unlock();
  if (!result)
    *out = node;
  return result;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count) {
  (void)dependencies, (void)count;
  return add_node(out, graph, CU_GRAPH_NODE_TYPE_EMPTY, NULL, 0);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params) {
  (void)dependencies, (void)count;
  return params ? add_node(out, graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params, 0) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUdeviceptr address) {
  (void)dependencies, (void)count;
  return add_node(out, graph, CU_GRAPH_NODE_TYPE_MEM_FREE, NULL, address);
}

static CUresult add_any(CUgraphNode *out, CUgraph graph, CUgraphNodeParams *params) {
  CUDA_MEM_ALLOC_NODE_PARAMS alloc;
  CUresult result;
  if (!params)
    return CUDA_ERROR_INVALID_VALUE;
  switch (params->type) {
  case CU_GRAPH_NODE_TYPE_EMPTY:
    return add_node(out, graph, params->type, NULL, 0);
  case CU_GRAPH_NODE_TYPE_MEM_FREE:
    return add_node(out, graph, params->type, NULL, params->free.dptr);
  case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    alloc = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = params->alloc.poolProps, .bytesize = params->alloc.bytesize};
    result = add_node(out, graph, params->type, &alloc, 0);
    if (!result)
      params->alloc.dptr = alloc.dptr;
    return result;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *params) {
  (void)dependencies, (void)count;
  return add_any(out, graph, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
  (void)dependencies, (void)edges, (void)count;
  return add_any(out, graph, params);
}

/* ---- asking ---- */
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  size_t i = 0;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (!count || !sim_graph_known(graph)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (!nodes) {
    *count = graph->nodes;
  } else {
    for (CUgraphNode n = graph->first; n && i < *count; n = n->next)
      nodes[i++] = n;
    for (size_t rest = i; rest < *count; rest++)
      nodes[rest] = NULL;
    *count = i;
  }
  sim_unlock();
  return result;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *out) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (out && node_known(node))
    *out = node->type;
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *out) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (out && node_known(node) && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    *out = node->params;
    out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED; /* a captured one had none given */
    out->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, node->memory->device};
    out->bytesize = node->memory->bytes;
    out->dptr = node->memory->address;
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  sim_unlock();
  return result;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *out) {
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  if (out && node_known(node) && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
    *out = node->memory->address;
  else
    result = CUDA_ERROR_INVALID_VALUE;
  sim_unlock();
  return result;
}

/* ---- executables ---- */

/* At most one executable of a graph that allocates. Caller holds the lock. */
static bool may_instantiate(CUgraph graph) {
  if (!sim_graph_known(graph))
    return false;
  for (CUgraphExec e = state.executables; graph->allocates && e; e = e->next) {
    if (e->graph == graph)
      return false;
  }
  return true;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  CUgraphExec exec = NULL;
  CUcontext context;
  CUresult result = sim_current(&context);
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  if (!may_instantiate(graph))
    result = CUDA_ERROR_INVALID_VALUE;
  else if (!(exec = calloc(1, sizeof *exec + graph->nodes * sizeof *exec->step)))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  else
    result = sim_overhead_take(context->device, SIMGPU_QUEUE);
  if (!result) {
    exec->graph = graph;
    exec->flags = flags;
    exec->device = context->device;
    for (CUgraphNode n = graph->first; n; n = n->next) {
      if (!n->memory)
        continue;
      exec->step[exec->steps++] = (struct step){n->type, n->memory};
      n->memory->references++;
    }
    exec->next = state.executables;
    state.executables = exec;
    *out = exec;
  } else {
    free(exec);
  }
  sim_unlock();
  return result;
}

CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_room) {
  (void)error_node, (void)log, (void)log_room;
  return instantiate(out, graph, 0);
}
CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_room) {
  (void)error_node, (void)log, (void)log_room;
  return instantiate(out, graph, 0);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  return instantiate(out, graph, flags);
}

static CUresult prepare(CUgraphExec handle, CUstream stream, bool launch);

static CUresult instantiate_with(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  CUresult result = params ? instantiate(out, graph, params->flags) : CUDA_ERROR_INVALID_VALUE;
  if (!result && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
    result = prepare(*out, params->hUploadStream, false);
  if (params) {
    params->hErrNode_out = NULL;
    params->result_out = result ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
  }
  return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  return instantiate_with(out, graph, params);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  return instantiate_with(out, graph, params);
}

/* The link to an executable. Caller holds the lock. */
static CUgraphExec *exec_at(CUgraphExec exec) {
  CUgraphExec *link;
  for (link = &state.executables; *link && *link != exec; link = &(*link)->next)
    ;
  return link;
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  CUgraphExec *link, exec;
  CUresult result = sim_ready();
  if (result)
    return result;
  sim_lock();
  link = exec_at(handle);
  exec = *link;
  if (exec) {
    *link = exec->next;
    for (size_t i = 0; i < exec->steps; i++)
      unrefer(exec->step[i].memory);
    sim_overhead_return(exec->device, SIMGPU_QUEUE);
    free(exec);
  } else {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  sim_unlock();
  return result;
}

/* ---- launching. Callers hold the lock. ---- */

/* What a launch takes, thought through on each device: the most at one time, and all in all. False for one that cannot
 * be: memory allocated twice, or freed without being there. */
static bool plan(CUgraphExec exec, uint64_t *most, uint64_t *all) {
  int64_t now[SIM_MAX_DEVICES] = {0};
  bool again = exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  memset(most, 0, SIM_MAX_DEVICES * sizeof *most);
  *all = 0;
  for (size_t i = 0; i < exec->steps; i++)
    exec->step[i].memory->planned = exec->step[i].memory->there;
  for (size_t i = 0; again && i < exec->steps; i++) {
    struct memory *m = exec->step[i].memory;
    if (exec->step[i].type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !m->planned)
      continue;
    m->planned = false;
    now[m->device] -= (int64_t)sim_reserve_piece(m->bytes);
  }
  for (size_t i = 0; i < exec->steps; i++) {
    struct memory *m = exec->step[i].memory;
    bool comes = exec->step[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    int64_t piece = (int64_t)sim_reserve_piece(m->bytes);
    if (m->planned == comes)
      return false;
    m->planned = comes;
    now[m->device] += comes ? piece : -piece;
    *all += comes ? m->bytes : 0;
    if (now[m->device] > 0 && (uint64_t)now[m->device] > most[m->device])
      most[m->device] = (uint64_t)now[m->device];
  }
  return true;
}

static bool enlarge(const uint64_t *most) {
  for (int device = 0; device < sim_config()->devices; device++) {
    if (most[device] && !sim_reserve_grow(reserve_of(device), most[device]))
      return false;
  }
  return true;
}

static void run(CUgraphExec exec) {
  for (size_t i = 0; i < exec->steps; i++) {
    if (exec->step[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && exec->step[i].memory->there)
      vanish(exec->step[i].memory);
  }
  for (size_t i = 0; i < exec->steps; i++) {
    if (exec->step[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
      appear(exec->step[i].memory);
    else
      vanish(exec->step[i].memory);
  }
}

/* An upload takes the memory, a launch uses it. */
static CUresult prepare(CUgraphExec handle, CUstream stream, bool launch) {
  uint64_t most[SIM_MAX_DEVICES], all = 0;
  const char *cause = NULL;
  CUgraphExec exec;
  CUcontext context;
  CUresult result = sim_stream_check(stream, &context);
  if (result)
    return result;
  sim_lock();
  exec = *exec_at(handle);
  if (!exec || !plan(exec, most, &all)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (all) {
    if (sim_fault_due(SIM_CALL_MEMORY, all))
      cause = "fault";
    else if (!enlarge(most))
      cause = "capacity";
    if (cause)
      sim_journal_alloc(exec->device, SIMGPU_GRAPH, all, 0, cause);
  }
  if (!result && !cause && launch)
    run(exec);
  sim_unlock();
  return cause ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return prepare(exec, stream, false);
}
CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return prepare(exec, stream, false);
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return prepare(exec, stream, true);
}
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return prepare(exec, stream, true);
}

/* ---- the reserve ---- */
CUresult cuDeviceGraphMemTrim(CUdevice device) {
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
  sim_lock();
  sim_reserve_trim(reserve_of(device), 0);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
  const struct sim_reserve *r;
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
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
  CUresult result = sim_ready();
  if (result)
    return result;
  if (!sim_known_device(device))
    return CUDA_ERROR_INVALID_DEVICE;
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
