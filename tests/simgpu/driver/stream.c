/*
 * stream.c - streams and events. Nothing is ever pending, so they carry little: a handle that is checked, the context
 * that they end with, the capture that they take part in and, for events, the time when they were recorded. The default
 * streams (0, 1 and 2 as handles) are always valid and never capture.
 */
#include <stdlib.h>
#include <time.h>

#include "internal.h"

struct CUevent_st {
  struct CUevent_st *next;
  CUcontext context;
  struct sim_capture *capture; /* recorded while that was on */
  unsigned flags;
  atomic_llong at_ns; /* 0: not recorded */
};

static struct {
  CUstream streams;
  CUevent events;
} state;

bool sim_stream_is_standard(CUstream stream) {
  return (uintptr_t)stream <= 2;
}

CUresult sim_stream_check(CUstream stream, CUcontext *context) {
  CUresult result = sim_current(context);
  bool found = sim_stream_is_standard(stream);
  if (result)
    return result;
  sim_lock();
  for (CUstream s = state.streams; s && !found; s = s->next)
    found = s == stream;
  sim_unlock();
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
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

/* ---- for captures. Callers hold the lock. ---- */
struct sim_capture *sim_stream_capture(CUstream stream) {
  return sim_stream_is_standard(stream) ? NULL : stream->capture;
}

void sim_stream_uncapture(const struct sim_capture *capture) {
  for (CUstream s = state.streams; s; s = s->next) {
    if (s->capture == capture)
      s->capture = NULL;
  }
  for (CUevent e = state.events; e; e = e->next) {
    if (e->capture == capture)
      e->capture = NULL;
  }
}

/* ---- streams ---- */
CUresult sim_stream_create(CUstream *out, CUcontext context, unsigned flags, int priority) {
  CUresult result;
  CUstream stream;
  if (!out || flags > CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  stream = calloc(1, sizeof *stream);
  if (!stream)
    return CUDA_ERROR_OUT_OF_MEMORY;
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  sim_lock();
  result = sim_overhead_take(context->device, SIMGPU_QUEUE);
  if (!result) {
    stream->next = state.streams;
    state.streams = stream;
    *out = stream;
  }
  sim_unlock();
  if (result)
    free(stream);
  return result;
}

static CUresult create_stream(CUstream *out, unsigned flags, int priority) {
  CUcontext context;
  CUresult result = sim_current(&context);
  return result ? result : sim_stream_create(out, context, flags, priority);
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
  return create_stream(out, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
  return create_stream(out, flags, priority);
}

/* Takes a stream out of the list. Caller holds the lock. */
static void end_stream(CUstream *link) {
  CUstream stream = *link;
  if (stream->capture && sim_capture_begun_on(stream->capture, stream))
    sim_capture_abandon(stream->capture);
  *link = stream->next;
  sim_overhead_return(stream->context->device, SIMGPU_QUEUE);
  free(stream);
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
    end_stream(link);
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_unlock();
  return result;
}

CUresult cuStreamDestroy(CUstream stream) {
  return destroy_stream(stream);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  return destroy_stream(stream);
}

/* CUDA_SUCCESS where a stream may be waited for. */
static CUresult idle(CUstream stream, CUcontext *context) {
  struct sim_capture *capture;
  CUresult result = sim_stream_check(stream, context);
  if (result)
    return result;
  sim_lock();
  capture = sim_stream_capture(stream);
  if (capture)
    sim_capture_forbids();
  sim_unlock();
  return capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static CUresult query(CUstream stream) {
  CUcontext context;
  return idle(stream, &context);
}

static CUresult synchronize(CUstream stream) {
  CUcontext context;
  CUresult result = idle(stream, &context);
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
  return query(stream);
}
CUresult cuStreamQuery_ptsz(CUstream stream) {
  return query(stream);
}

/* A stream that waits for an event of a capture joins it. */
static CUresult wait_event(CUstream stream, CUevent event) {
  CUcontext context;
  CUresult result = sim_stream_check(stream, &context);
  if (!result)
    result = check_event(event);
  if (result)
    return result;
  sim_lock();
  if (event->capture && !sim_stream_is_standard(stream) && !stream->capture)
    stream->capture = event->capture;
  sim_unlock();
  return CUDA_SUCCESS;
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
  event->context = context;
  event->flags = flags;
  sim_lock();
  result = sim_overhead_take(context->device, SIMGPU_QUEUE);
  if (!result) {
    event->next = state.events;
    state.events = event;
    *out = event;
  }
  sim_unlock();
  if (result)
    free(event);
  return result;
}

/* Takes an event out of the list. Caller holds the lock. */
static void end_event(CUevent *link) {
  CUevent event = *link;
  *link = event->next;
  sim_overhead_return(event->context->device, SIMGPU_QUEUE);
  free(event);
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
    end_event(link);
  else
    result = CUDA_ERROR_INVALID_HANDLE;
  sim_unlock();
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
  CUcontext context;
  CUresult result = sim_stream_check(stream, &context);
  if (!result)
    result = check_event(event);
  if (result)
    return result;
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->at_ns = now.tv_sec * 1000000000ll + now.tv_nsec;
  sim_lock();
  event->capture = sim_stream_capture(stream);
  sim_unlock();
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

void sim_stream_drop(CUcontext context) {
  for (CUstream *link = &state.streams; *link;) {
    if ((*link)->context == context)
      end_stream(link);
    else
      link = &(*link)->next;
  }
  for (CUevent *link = &state.events; *link;) {
    if ((*link)->context == context)
      end_event(link);
    else
      link = &(*link)->next;
  }
}
