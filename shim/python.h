/*
 * python.h - the Python stack of the calling thread, from C, without the interpreter's lock: what CPython itself writes
 * when a program crashes. Other Pythons have none.
 */
#ifndef BSG_SHIM_PYTHON_H
#define BSG_SHIM_PYTHON_H

#include <stddef.h>

/* Finds the interpreter, where this process is one. Call before the first allocation, outside of any lock. */
void bsg_python_prepare(void);

/*
 * Frames, innermost first, a line each: `  File "train.py", line 12 in forward`. Returns the length; 0: the thread runs
 * no Python, or the process has none. Allocates nothing on the heap and takes no lock.
 */
int bsg_python_stack(char *out, size_t room);

#endif
