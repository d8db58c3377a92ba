/*
 * capture.c - stream capture: what is allocated and freed on a capturing stream becomes memory nodes of a graph instead
 * of memory. A stream that waits for an event of a capturing one joins its capture. In the stricter modes plain
 * allocations are refused while a capture is on, and spoil it, as in a real driver.
 */
#include <stdlib.h>

#include "internal.h"

struct sim_capture {
  struct sim_capture *next;
  CUgraph graph;
  bool lent; /* the graph is the client's, from before the capture */
  CUstream origin;
  cuuint64_t id;
  CUstreamCaptureStatus status;
  CUstreamCaptureMode mode;
  const void *thread; /* that began it */
  CUgraphNode last;   /* newest node */
};

static struct {
  struct sim_capture *all;
  cuuint64_t last_id;
} state;

static _Thread_local struct { CUstreamCaptureMode mode; } mine; /* its address stands for the thread */

bool sim_capture_forbids(void) {
  bool forbids = false;
  for (struct sim_capture *c = state.all; c; c = c->next) {
    bool own = c->thread == &mine && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mine.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (mine.mode == CU_STREAM_CAPTURE_MODE_RELAXED || (!own && !global))
      continue;
    c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    forbids = true;
  }
  return forbids;
}

CUresult sim_capture_alloc(struct sim_capture *c, int device, uint64_t bytes, CUdeviceptr *out) {
  if (c->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return sim_graph_add_alloc(c->graph, device, bytes, out, &c->last);
}

CUresult sim_capture_free(struct sim_capture *c, CUdeviceptr address) {
  if (c->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return sim_graph_add_free(c->graph, address, &c->last);
}

void sim_capture_abandon(struct sim_capture *c) {
  struct sim_capture **link;
  for (link = &state.all; *link != c; link = &(*link)->next)
    ;
  *link = c->next;
  sim_stream_uncapture(c);
  if (!c->lent && sim_graph_known(c->graph))
    sim_graph_delete(c->graph);
  free(c);
}

bool sim_capture_begun_on(const struct sim_capture *c, CUstream stream) {
  return c->origin == stream;
}

static CUresult begin(CUstream stream, CUgraph lent, CUstreamCaptureMode mode) {
  struct sim_capture *c;
  CUcontext context;
  CUresult result = sim_stream_check(stream, &context);
  if (result)
    return result;
  if (sim_stream_is_standard(stream))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  c = calloc(1, sizeof *c);
  if (!c)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_lock();
  *c = (struct sim_capture){.graph = lent ? lent : sim_graph_new(),
                            .lent = lent,
                            .origin = stream,
                            .id = ++state.last_id,
                            .status = CU_STREAM_CAPTURE_STATUS_ACTIVE,
                            .mode = mode,
                            .thread = &mine};
  if (stream->capture)
    result = CUDA_ERROR_ILLEGAL_STATE;
  else if (!c->graph)
    result = CUDA_ERROR_OUT_OF_MEMORY;
  else if (!sim_graph_known(c->graph))
    result = CUDA_ERROR_INVALID_VALUE;
  if (!result) {
    stream->capture = c;
    c->next = state.all;
    state.all = c;
  } else {
    if (!lent && c->graph)
      sim_graph_delete(c->graph);
    free(c);
  }
  sim_unlock();
  return result;
}

CUresult cuStreamBeginCapture(CUstream stream) {
  return begin(stream, NULL, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin(stream, NULL, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, NULL, mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, NULL, mode);
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
  (void)dependencies, (void)edges, (void)count;
  return graph ? begin(stream, graph, mode) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
  (void)dependencies, (void)edges, (void)count;
  return graph ? begin(stream, graph, mode) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult end(CUstream stream, CUgraph *out) {
  struct sim_capture *c;
  CUcontext context;
  CUresult result = sim_stream_check(stream, &context);
  if (result)
    return result;
  sim_lock();
  c = sim_stream_capture(stream);
  if (!c) {
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else if (c->origin != stream) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  } else if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != &mine) {
    result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  } else {
    bool spoilt = c->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    if (out)
      *out = spoilt ? NULL : c->graph;
    c->lent |= !spoilt && out;
    sim_capture_abandon(c);
    result = spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  }
  sim_unlock();
  return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *out) {
  return end(stream, out);
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *out) {
  return end(stream, out);
}

/* ---- asking; any output but the status may be NULL ---- */
static CUresult ask(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                    const CUgraphNode **dependencies, size_t *count) {
  const struct sim_capture *c;
  CUcontext context;
  CUresult result = sim_stream_check(stream, &context);
  if (result)
    return result;
  if (!status)
    return CUDA_ERROR_INVALID_VALUE;
  sim_lock();
  c = sim_stream_capture(stream);
  *status = c ? c->status : CU_STREAM_CAPTURE_STATUS_NONE;
  if (c && c->status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    if (id)
      *id = c->id;
    if (graph)
      *graph = c->graph;
    if (dependencies)
      *dependencies = c->last ? &c->last : NULL;
    if (count)
      *count = c->last != NULL;
  }
  sim_unlock();
  return CUDA_SUCCESS;
}

/* Each of them for the legacy and the per-thread default stream. */
#define ASK(suffix)                                                                                                    \
  CUresult cuStreamIsCapturing##suffix(CUstream stream, CUstreamCaptureStatus *status) {                               \
    return ask(stream, status, NULL, NULL, NULL, NULL);                                                                \
  }                                                                                                                    \
  CUresult cuStreamGetCaptureInfo##suffix(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {            \
    return ask(stream, status, id, NULL, NULL, NULL);                                                                  \
  }                                                                                                                    \
  CUresult cuStreamGetCaptureInfo_v2##suffix(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,           \
                                             CUgraph *graph, const CUgraphNode **dependencies, size_t *count) {        \
    return ask(stream, status, id, graph, dependencies, count);                                                        \
  }                                                                                                                    \
  CUresult cuStreamGetCaptureInfo_v3##suffix(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,           \
                                             CUgraph *graph, const CUgraphNode **dependencies,                         \
                                             const CUgraphEdgeData **edges, size_t *count) {                           \
    if (edges)                                                                                                         \
      *edges = NULL;                                                                                                   \
    return ask(stream, status, id, graph, dependencies, count);                                                        \
  }

ASK()
ASK(_ptsz)

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CUstreamCaptureMode before = mine.mode;
  if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  mine.mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}
