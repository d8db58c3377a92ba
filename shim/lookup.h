/*
 * lookup.h - symbol look-up: the filter behind our dlsym(), and the way past it to the real driver.
 */
#ifndef BSG_SHIM_LOOKUP_H
#define BSG_SHIM_LOOKUP_H

#include <stdint.h>

/* In two registers on every ABI that we know: see dlsym.S. */
struct bsg_lookup_answer {
  void *pointer;
  uintptr_t final; /* 0: `pointer` is nothing, the real dlsym() is to answer */
};

/* caller: the return address of the call of dlsym(). */
struct bsg_lookup_answer bsg_lookup_filter(void *handle, const char *name, const void *caller);

/* The real entry of an export of libcuda: in libcuda itself, or the next one after us. NULL: there is none. */
void *bsg_lookup_driver(const char *symbol);
void *bsg_lookup_next(const char *symbol);

/* Any symbol of the process, as RTLD_DEFAULT finds it; leaves no error behind. */
void *bsg_lookup_default(const char *symbol);

#endif
