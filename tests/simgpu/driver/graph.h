/*
 * graph.h - what graph_memory.c, graph.c and graph_exec.c share. Each uses what is above it, and no other file uses any
 * of it. Callers of all of it hold sim_lock().
 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "internal.h"

/* ---- graph_memory.c ---- */
/* What an allocation node stands for. */
struct sim_graph_memory {
  CUdeviceptr address;
  uint64_t bytes;
  int device;
  unsigned references; /* nodes, steps of executables, and 1 while it is there */
  bool there, planned; /* planned: would be there, while a launch is thought through */
};

/* An address without memory; the caller has the first reference to it. */
CUresult sim_graph_memory_new(int device, uint64_t bytes, struct sim_graph_memory **out);
/* Takes a reference away; with the last the address is free. */
void sim_graph_memory_unrefer(struct sim_graph_memory *m);
/* What begins at an address; NULL: none. */
struct sim_graph_memory *sim_graph_memory_at(CUdeviceptr address);
/* Sees to it that so many bytes more (an entry a device) can appear; false when a device has not what is missing. */
bool sim_graph_memory_reserve(const uint64_t *most);
/* Puts memory behind the address, and takes it away. */
void sim_graph_memory_appear(struct sim_graph_memory *m);
void sim_graph_memory_vanish(struct sim_graph_memory *m);

/* ---- graph.c ---- */
struct CUgraphNode_st {
  CUgraphNode next;
  CUgraph graph;
  CUgraphNodeType type;
  struct sim_graph_memory *memory;
  CUDA_MEM_ALLOC_NODE_PARAMS params;
};

struct CUgraph_st {
  CUgraph next;
  uint64_t id; /* never used again */
  CUgraphNode first, last;
  size_t nodes;
  bool allocates;
};

#endif
