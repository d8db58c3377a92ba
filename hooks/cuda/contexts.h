/*
 * contexts.h - contexts by small numbers, and the device of each. What is allocated in a context goes when it is
 * destroyed, and its handle may come again for another one: entries of the ledger carry the number. 0: no context, or
 * none that could be numbered. Thread-safe.
 */
#ifndef BSG_CUDA_CONTEXTS_H
#define BSG_CUDA_CONTEXTS_H

#include <stdint.h>

#include "hooks/cuda/api.h"

struct bsg_context {
  uint16_t number;
  int device; /* 0 where there is no context */
};

/* The calling thread's. One driver call where it is the one of the last time. */
struct bsg_context bsg_contexts_current(void);

/* That of a handle, if it was seen current before; else number 0. */
struct bsg_context bsg_contexts_of(CUcontext handle);

/* This context is its device's primary one. */
void bsg_contexts_primary(CUcontext handle, int device);

/* The primary context of a device, if it was seen; else NULL. */
CUcontext bsg_contexts_primary_of(int device);

/*
 * Around the destruction of a context: take() makes its handle unknown, so that it may come again at once, and returns
 * the number; put_back() undoes that where the driver refused; else release() ends the number once nothing carries it.
 */
struct bsg_context bsg_contexts_take(CUcontext handle);
void bsg_contexts_put_back(CUcontext handle, struct bsg_context context);
void bsg_contexts_release(struct bsg_context context);

/* A context of a device, to ask the driver about it through; NULL: none was seen. */
CUcontext bsg_contexts_any(int device);

/* After fork(). */
void bsg_contexts_forget(void);

#endif
