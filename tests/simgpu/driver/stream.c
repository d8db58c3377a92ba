/*
 * stream.c - streams and events. Nothing is ever pending, so they only carry a handle that is checked and, for events,
 * the time when they were recorded. The default streams (0, 1 and 2 as handles) are always valid.
 */
#include <stdlib.h>
#include <time.h>

#include "internal.h"

struct CUstream_st {
  struct CUstream_st *next;
  unsigned flags;
  int priority;
};

struct CUevent_st {
  struct CUevent_st *next;
  unsigned flags;
  int64_t at_ns; /* 0: not recorded */
};

static struct {
  CUstream streams;
  CUevent events;
} state;

CUresult sim_stream_check(CUstream stream, CUcontext *context) {
  CUresult result = sim_current(context);
  bool found = (uintptr_t)stream <= 2;
  if (result)
    return result;
  sim_lock();
  for (CUstream s = state.streams; s && !found; s = s->next)
    found = s == stream;
  sim_unlock();
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult check_stream(CUstream stream) {
  CUcontext context;
  return sim_stream_check(stream, &context);
}

static CUresult check_event(CUevent event) {
  CUresult result = sim_ready();
  bool found = false;
  if (result)
    return result;
  sim_lock();
  for (CUevent e = state.events; e && !found; e = e->next)
    found = e == event;
  sim_unlock();
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- streams ---- */
static CUresult create_stream(CUstream *out, unsigned flags, int priority) {
  CUcontext context;
  CUresult result = sim_current(&context);
  CUstream stream;
  if (result)
    return result;
  if (!out || flags > CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  stream = calloc(1, sizeof *stream);
  if (!stream)
    return CUDA_ERROR_OUT_OF_MEMORY;
  stream->flags = flags;
  stream->priority = priority;
  sim_lock();
  stream->next = state.streams;
  state.streams = stream;
  sim_unlock();
  *out = stream;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
  return create_stream(out, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
  return create_stream(out, flags, priority);
}

static CUresult destroy_stream(CUstream stream) {
  CUresult result = sim_ready();
  CUstream *link;
  if (result)
    return result;
  sim_lock();
  for (link = &state.streams; *link && *link != stream; link = &(*link)->next)
    ;
  if (*link && stream)
    *link = stream->next;
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_unlock();
  if (!result)
    free(stream);
  return result;
}

CUresult cuStreamDestroy(CUstream stream) {
  return destroy_stream(stream);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  return destroy_stream(stream);
}
static CUresult synchronize(CUstream stream) {
  CUcontext context;
  CUresult result = sim_stream_check(stream, &context);
  if (result)
    return result;
  sim_lock();
  sim_pool_settle(context->device);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  return synchronize(stream);
}
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return synchronize(stream);
}
CUresult cuStreamQuery(CUstream stream) {
  return check_stream(stream);
}
CUresult cuStreamQuery_ptsz(CUstream stream) {
  return check_stream(stream);
}

static CUresult wait_event(CUstream stream, CUevent event) {
  CUresult result = check_stream(stream);
  return result ? result : check_event(event);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  (void)flags;
  return wait_event(stream, event);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  (void)flags;
  return wait_event(stream, event);
}

/* ---- events ---- */
CUresult cuEventCreate(CUevent *out, unsigned int flags) {
  CUcontext context;
  CUresult result = sim_current(&context);
  CUevent event;
  if (result)
    return result;
  if (!out)
    return CUDA_ERROR_INVALID_VALUE;
  event = calloc(1, sizeof *event);
  if (!event)
    return CUDA_ERROR_OUT_OF_MEMORY;
  event->flags = flags;
  sim_lock();
  event->next = state.events;
  state.events = event;
  sim_unlock();
  *out = event;
  return CUDA_SUCCESS;
}

static CUresult destroy_event(CUevent event) {
  CUresult result = sim_ready();
  CUevent *link;
  if (result)
    return result;
  sim_lock();
  for (link = &state.events; *link && *link != event; link = &(*link)->next)
    ;
  if (*link && event)
    *link = event->next;
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_unlock();
  if (!result)
    free(event);
  return result;
}

CUresult cuEventDestroy(CUevent event) {
  return destroy_event(event);
}
CUresult cuEventDestroy_v2(CUevent event) {
  return destroy_event(event);
}

static CUresult record(CUevent event, CUstream stream) {
  struct timespec now;
  CUresult result = wait_event(stream, event);
  if (result)
    return result;
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->at_ns = now.tv_sec * 1000000000ll + now.tv_nsec;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return record(event, stream);
}
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
  return record(event, stream);
}
CUresult cuEventQuery(CUevent event) {
  return check_event(event);
}
CUresult cuEventSynchronize(CUevent event) {
  CUcontext context;
  CUresult result = check_event(event);
  if (result || sim_current(&context)) /* an event can be waited for without a context */
    return result;
  sim_lock();
  sim_pool_settle(context->device);
  sim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  CUresult result = check_event(start);
  if (!result)
    result = check_event(end);
  if (result)
    return result;
  if (!milliseconds)
    return CUDA_ERROR_INVALID_VALUE;
  if (!start->at_ns || !end->at_ns || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
    return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = (float)(end->at_ns - start->at_ns) / 1e6f;
  return CUDA_SUCCESS;
}
