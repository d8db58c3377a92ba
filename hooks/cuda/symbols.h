/*
 * symbols.h - names of code addresses, for reports. Asks what is loaded without the loader's main lock, which a thread
 * may hold for as long as a library's constructor runs: and that may be waiting for us.
 */
#ifndef BSG_CUDA_SYMBOLS_H
#define BSG_CUDA_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "name+0x12 (file)" of a code address; returns its length. */
int bsg_symbols_name(uint64_t pc, char *out, size_t room);

/* Is any library loaded whose file name begins like one of these? names: NULL at its end. */
bool bsg_symbols_loaded(const char *const names[]);

#endif
