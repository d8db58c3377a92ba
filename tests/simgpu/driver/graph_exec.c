/*
 * graph_exec.c - executable graphs: instantiation, upload and launch. An executable is a list of what its graph's
 * memory nodes did when it was instantiated; the graph may be gone by the time that it is launched.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct step {
  CUgraphNodeType type;
  struct sim_graph_memory *memory;
};

struct CUgraphExec_st {
  CUgraphExec next;
  uint64_t graph; /* id */
  unsigned long long flags;
  int device;
  size_t steps;
  struct step step[];
};

static struct { CUgraphExec all; } state;

/* ---- executables ---- */

/* At most one executable of a graph that allocates. Caller holds the lock. */
static bool may_instantiate(CUgraph graph) {
  if (!sim_graph_known(graph))
    return false;
  for (CUgraphExec e = state.all; graph->allocates && e; e = e->next) {
    if (e->graph == graph->id)
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
    exec->graph = graph->id;
    exec->flags = flags;
    exec->device = context->device;
    for (CUgraphNode n = graph->first; n; n = n->next) {
      if (!n->memory)
        continue;
      exec->step[exec->steps++] = (struct step){n->type, n->memory};
      n->memory->references++;
    }
    exec->next = state.all;
    state.all = exec;
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
  for (link = &state.all; *link && *link != exec; link = &(*link)->next)
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
      sim_graph_memory_unrefer(exec->step[i].memory);
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
    struct sim_graph_memory *m = exec->step[i].memory;
    if (exec->step[i].type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !m->planned)
      continue;
    m->planned = false;
    now[m->device] -= (int64_t)sim_reserve_piece(m->bytes);
  }
  for (size_t i = 0; i < exec->steps; i++) {
    struct sim_graph_memory *m = exec->step[i].memory;
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

static void run(CUgraphExec exec) {
  for (size_t i = 0; i < exec->steps; i++) {
    if (exec->step[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && exec->step[i].memory->there)
      sim_graph_memory_vanish(exec->step[i].memory);
  }
  for (size_t i = 0; i < exec->steps; i++) {
    if (exec->step[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
      sim_graph_memory_appear(exec->step[i].memory);
    else
      sim_graph_memory_vanish(exec->step[i].memory);
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
    else if (!sim_graph_memory_reserve(most))
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
