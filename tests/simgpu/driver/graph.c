/*
 * graph.c - graphs and their nodes, as far as they allocate: building and asking. Nodes are memory nodes (their memory
 * is in graph_memory.c) and empty ones, as nothing here is executed but memory. Knows nothing of executables.
 */
#include <stdlib.h>

#include "graph.h"

static struct {
  CUgraph all;
  uint64_t made;
} state;

/* ---- graphs and nodes. Callers hold the lock. ---- */
bool sim_graph_known(CUgraph graph) {
  for (CUgraph g = state.all; g; g = g->next) {
    if (g == graph)
      return true;
  }
  return false;
}

CUgraph sim_graph_new(void) {
  CUgraph graph = calloc(1, sizeof *graph);
  if (!graph)
    return NULL;
  graph->id = ++state.made;
  graph->next = state.all;
  state.all = graph;
  return graph;
}

static bool node_known(CUgraphNode node) {
  for (CUgraph g = state.all; g; g = g->next) {
    for (CUgraphNode n = g->first; n; n = n->next) {
      if (n == node)
        return true;
    }
  }
  return false;
}

static CUgraphNode add(CUgraph graph, CUgraphNodeType type, struct sim_graph_memory *memory) {
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
  struct sim_graph_memory *memory;
  CUresult result = bytes ? sim_graph_memory_new(device, bytes, &memory) : CUDA_ERROR_INVALID_VALUE;
  if (result)
    return result;
  *node = add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, memory);
  if (*node)
    *out = memory->address;
  sim_graph_memory_unrefer(memory); /* the node has its own reference */
  return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_graph_add_free(CUgraph graph, CUdeviceptr address, CUgraphNode *node) {
  struct sim_graph_memory *memory = sim_graph_memory_at(address);
  if (!memory)
    return CUDA_ERROR_INVALID_VALUE;
  *node = add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, memory);
  return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_graph_delete(CUgraph graph) {
  CUgraph *link;
  CUgraphNode node, next;
  for (link = &state.all; *link != graph; link = &(*link)->next)
    ;
  *link = graph->next;
  for (node = graph->first; node; node = next) {
    next = node->next;
    if (node->memory)
      sim_graph_memory_unrefer(node->memory);
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
