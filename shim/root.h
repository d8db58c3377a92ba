/*
 * root.h - the composition root: the one place that knows both the hooks and the policy. Starts the library at the
 * first driver look-up, carries facts from hooks/cuda/ to the policy, and holds the lock that the policy asks its
 * callers for.
 */
#ifndef BSG_SHIM_ROOT_H
#define BSG_SHIM_ROOT_H

#include <stdbool.h>

#include "policy/policy.h"

/* Everything that was put off: options, fork handler, unwinder. Cheap when done. Never waits for the loader's lock. */
void bsg_root_start(void);

/* False where BSGUARD=0. Starts. */
bool bsg_root_active(void);
enum bsg_mode bsg_root_mode(void);

/* Locks; NULL, and not locked: off, or the process is at its end. */
struct bsg_policy *bsg_root_lock(void);
void bsg_root_unlock(void);

/* An adapter is there: nothing about a missing one is said. */
void bsg_root_attached(void);

/* At exit: the policy's last word, if this process used a GPU. */
void bsg_root_stop(void);

#endif
