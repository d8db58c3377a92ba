/*
 * symbols.h - names of code addresses, for reports, and the little that must be known of libraries. Asks what is loaded
 * without the loader's main lock, which a thread may hold for as long as a library's constructor runs: and that may be
 * waiting for us.
 */
#ifndef BSG_CUDA_SYMBOLS_H
#define BSG_CUDA_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shim/facts.h"

/* "name+0x12 (file)" of a code address; returns its length. */
int bsg_symbols_name(uint64_t pc, char *out, size_t room);

/*
 * Names many addresses, given in rising order, at most BSG_MOST_FRAMES: each library's symbols are read through once
 * for all that lie in it. `modules`: those libraries, as far as there is room; returns how many. Callers serialise.
 */
int bsg_symbols_resolve(struct bsg_frame_fact *frames, int count, struct bsg_module_fact *modules, int room);

/*
 * What dlsym(RTLD_NEXT, name) is for the code at `caller`: the first definition in a library that was loaded after its
 * own. NULL: there is none. (The order of loading is that of the search but for libraries that were opened privately.)
 */
void *bsg_symbols_next(const void *caller, const char *name);

/* Is any library loaded whose file name begins like one of these? names: NULL at its end. */
bool bsg_symbols_loaded(const char *const names[]);

#endif
