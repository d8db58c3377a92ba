/*
 * sites.h - native allocation sites: who asked. A site is a stack of code addresses, kept once and known by a small
 * number from then on (BSG_NO_SITE: not known). Stacks are taken at high-water marks, rate-limited, and at refused
 * calls.
 */
#ifndef BSG_CUDA_SITES_H
#define BSG_CUDA_SITES_H

#include "shim/facts.h"

/*
 * Finds an unwinder and tries it once, so that nothing has to be loaded when memory is short. libunwind.so.8 is opened
 * privately: as a dependency it would put its _Unwind_* in front of the process's C++ unwinder. Else glibc's
 * backtrace(). Call before the first allocation, outside of any lock.
 */
void bsg_sites_prepare(void);

/* "libunwind", "glibc", "none" */
const char *bsg_sites_unwinder(void);

/* The site of this thread's call into a wrapper; caller: the wrapper's return address, where the stack is to begin. */
uint32_t bsg_sites_here(const void *caller);

/* The same, but at most one a millisecond after a burst of 128: else BSG_NO_SITE. */
uint32_t bsg_sites_sometimes_here(const void *caller);

/* -ENOENT: no such site. */
int bsg_sites_get(uint32_t site, struct bsg_site_fact *out);

/* After fork(): usable again whatever another thread was doing; the sites are kept. */
void bsg_sites_forget(void);

#endif
