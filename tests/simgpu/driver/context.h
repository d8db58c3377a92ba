/*
 * context.h - what context.c does for context_primary.c and context_thread.c. Other files need internal.h only.
 */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "internal.h"

/* A context that is not alive yet; NULL where the host has no memory. Caller holds sim_lock(). */
CUcontext sim_context_make(int device, bool primary, unsigned flags);
/* CUDA_SUCCESS for a live context, CUDA_ERROR_CONTEXT_IS_DESTROYED for one that was. Takes the lock. */
CUresult sim_context_check(CUcontext context);
/* Takes what a context costs. Caller holds sim_lock(). */
CUresult sim_context_bring_up(CUcontext context);
/* Frees what a context owns. Caller holds sim_lock(). */
void sim_context_drop(CUcontext context);
/* The same, and ends it. Caller holds sim_lock(). */
void sim_context_take_down(CUcontext context);

#endif
