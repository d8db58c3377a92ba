/*
 * graph.c - the wrappers of graphs. Memory that nodes allocate is the device's graphs' own: the driver reserves it when
 * a graph is instantiated or launched, and keeps it until it is trimmed. The driver is asked how much, and only once a
 * node was seen that allocates.
 */
#include "hooks/cuda/reserves.h"
#include "hooks/cuda/wrap.h"

/* Around calls after which graphs may hold more or less. */
#define GRAPH(symbol, CALL)                                                                                            \
  BSG_ENTER(symbol, CALL);                                                                                             \
  result = real CALL;                                                                                                  \
  if (__builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, 0))                                                         \
    bsg_record_unsaid(BSG_HOOK_##symbol, BSG_CALLER, -1);                                                              \
  else if (__builtin_expect(bsg_reserves_graph_devices() != 0, 0))                                                     \
    bsg_record_reserves(-1);                                                                                           \
  BSG_LEAVE()

static void allocates(const CUmemPoolProps_v1 *properties) {
  int device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties->location.id : -1;
  if (device >= 0 && device < BSG_MAX_DEVICES)
    bsg_reserves_graph(device);
}

BSG_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                           size_t count, CUDA_MEM_ALLOC_NODE_PARAMS_v1 *parameters) {
  BSG_ENTER(cuGraphAddMemAllocNode, (node, graph, dependencies, count, parameters));
  result = real(node, graph, dependencies, count, parameters);
  if (result == CUDA_SUCCESS) {
    allocates(&parameters->poolProps);
    bsg_record_reserves(-1);
  } else if (result == CUDA_ERROR_OUT_OF_MEMORY)
    bsg_record_unsaid(BSG_HOOK_cuGraphAddMemAllocNode, BSG_CALLER, -1);
  BSG_LEAVE();
}

static void added(enum bsg_hook_id hook, const void *caller, CUresult result, const CUgraphNodeParams *parameters) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    bsg_record_unsaid(hook, caller, -1);
  else if (result == CUDA_SUCCESS && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    allocates(&parameters->alloc.poolProps);
    bsg_record_reserves(-1);
  }
}

BSG_EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                   CUgraphNodeParams *parameters) {
  BSG_ENTER(cuGraphAddNode, (node, graph, dependencies, count, parameters));
  result = real(node, graph, dependencies, count, parameters);
  added(BSG_HOOK_cuGraphAddNode, BSG_CALLER, result, parameters);
  BSG_LEAVE();
}

BSG_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                      const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *parameters) {
  BSG_ENTER(cuGraphAddNode_v2, (node, graph, dependencies, data, count, parameters));
  result = real(node, graph, dependencies, data, count, parameters);
  added(BSG_HOOK_cuGraphAddNode_v2, BSG_CALLER, result, parameters);
  BSG_LEAVE();
}

BSG_EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                       size_t room) {
  GRAPH(cuGraphInstantiate, (exec, graph, error_node, log, room));
}

BSG_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                          size_t room) {
  GRAPH(cuGraphInstantiate_v2, (exec, graph, error_node, log, room));
}

BSG_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  GRAPH(cuGraphInstantiateWithFlags, (exec, graph, flags));
}

BSG_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                                 CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  GRAPH(cuGraphInstantiateWithParams, (exec, graph, parameters));
}

BSG_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  GRAPH(cuGraphInstantiateWithParams_ptsz, (exec, graph, parameters));
}

BSG_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  GRAPH(cuGraphUpload, (exec, stream));
}

BSG_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  GRAPH(cuGraphUpload_ptsz, (exec, stream));
}

BSG_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  GRAPH(cuGraphLaunch, (exec, stream));
}

BSG_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  GRAPH(cuGraphLaunch_ptsz, (exec, stream));
}

BSG_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
  GRAPH(cuGraphExecDestroy, (exec));
}

BSG_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  GRAPH(cuGraphDestroy, (graph));
}

BSG_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice_v1 device) {
  GRAPH(cuDeviceGraphMemTrim, (device));
}

BSG_EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice_v1 device, CUgraphMem_attribute attribute, void *value) {
  GRAPH(cuDeviceSetGraphMemAttribute, (device, attribute, value));
}
