/*
 * hooks.h - the table of hooked entry points (hooks.def) at run time: our wrapper of each, and where the real one is.
 * Used by the wrappers to go on to the driver and by the look-up to pick a wrapper.
 */
#ifndef BSG_CUDA_HOOKS_H
#define BSG_CUDA_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

#include "hooks/cuda/api.h"

/* The CUDA version up to which hooks.def is known to be complete: a later one may have brought an ABI of its own. */
#define BSG_HOOKS_COMPLETE_TO 13000

enum bsg_hook_id {
#define BSG_HOOK(symbol, name, since, stream, kind, type) BSG_HOOK_##symbol,
#include "hooks/cuda/hooks.def"
#undef BSG_HOOK
  BSG_HOOK_COUNT
};

#define BSG_HOOK(symbol, name, since, stream, kind, type) typedef type bsg_fn_##symbol;
#include "hooks/cuda/hooks.def"
#undef BSG_HOOK

/* How an answer of cuGetProcAddress() was matched. */
enum bsg_match {
  BSG_MATCH_NONE,    /* passed through */
  BSG_MATCH_WRAPPER, /* replaced by our wrapper, or was it already */
  BSG_MATCH_UNHOOKED /* passed through, though a name of ours: no wrapper is known to fit. Once for each name */
};

/*
 * True while this thread is inside a wrapper: driver calls made from there (by the driver, by another interposer, by
 * us) only go on. A counter in the thread's static TLS: no allocation, safe in any constructor.
 */
extern __thread int bsg_hooks_depth __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The driver's name of a hook, static storage. */
const char *bsg_hook_symbol(enum bsg_hook_id id);

/* What the wrapper must call; NULL: there is no driver. Inside a wrapper always libcuda's own, so that no loop arises.
 */
void *bsg_hook_real(enum bsg_hook_id id);
#define BSG_REAL(symbol) ((bsg_fn_##symbol)bsg_hook_real(BSG_HOOK_##symbol))

/* Our wrapper for an export's name; NULL: not hooked. */
void *bsg_hook_wrapper(const char *symbol);

/* Where libcuda's export is, if it is hooked and was looked up before; looks nothing up. NULL: not so. */
void *bsg_hook_known(const char *symbol);

/* Has libcuda this export? */
bool bsg_hook_in_driver(const char *symbol);

/*
 * `found` is what dlsym() gave for an export's name: is it the driver's, so that our wrapper may answer for it? Where
 * libcuda.so.1 is not loaded by that name, whatever was found becomes the real entry.
 */
bool bsg_hook_adopt(const char *symbol, void *found);

/* Is this one of our wrappers? */
bool bsg_hook_is_wrapper(const void *entry);

/*
 * `entry` is what the driver answered to cuGetProcAddress(name, version, flags). *entry is replaced by our wrapper: the
 * one of the same address, else the one that the table names for (name, version, stream), whose real entry it becomes.
 */
enum bsg_match bsg_hook_match(const char *name, int version, unsigned long long flags, void **entry);

#endif
