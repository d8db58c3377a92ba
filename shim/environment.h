/*
 * environment.h - the environment, read and changed without libc's functions: a shell brings its own getenv() and
 * setenv(), which are in front of libc's and not ready when a preloaded library starts.
 */
#ifndef BSG_SHIM_ENVIRONMENT_H
#define BSG_SHIM_ENVIRONMENT_H

/* NULL: not set. */
const char *bsg_environment_get(const char *name);

/* Calls look("NAME=value") for the first few whose name begins so. */
void bsg_environment_each(const char *prefix, void (*look)(const char *definition));

/*
 * Only while the process has one thread. definition: "NAME=value", kept, not copied. -ENOMEM: unchanged.
 */
int bsg_environment_set(char *definition);

#endif
