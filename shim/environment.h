/*
 * environment.h - the environment, read and changed without libc's functions: a shell brings its own getenv() and
 * setenv(), which are in front of libc's and not ready when a preloaded library starts.
 */
#ifndef BSG_SHIM_ENVIRONMENT_H
#define BSG_SHIM_ENVIRONMENT_H

/* NULL: not set. */
const char *bsg_environment_get(const char *name);

/*
 * Only while the process has one thread. definition: "NAME=value", kept, not copied. -ENOMEM: unchanged.
 */
int bsg_environment_set(char *definition);

#endif
