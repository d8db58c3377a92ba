/*
 * current.h - where the job is: the step and the phase that marks and events carry. Lock-free: read inside allocations.
 */
#ifndef BSG_SHIM_CURRENT_H
#define BSG_SHIM_CURRENT_H

#include "shim/facts.h"

struct bsg_where bsg_current_where(void);

/* An adapter or a loop reports: steps are counted from now on, the first is 1. */
void bsg_current_reported(void);

/* Returns the phase before. */
int32_t bsg_current_set_phase(int32_t phase);

/* A step ended; returns how many have. */
int64_t bsg_current_step(void);

/* After fork(). */
void bsg_current_forget(void);

#endif
