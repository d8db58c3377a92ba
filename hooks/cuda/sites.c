/*
 * sites.c - see sites.h. Depends on libc; on libunwind.so.8 where it is found. Never allocates from the heap after
 * bsg_sites_prepare(), and never forces its libunwind on the process (RTLD_LOCAL).
 */
#include "hooks/cuda/sites.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* libunwind's per-thread clean-up runs when ThreadSanitizer has taken leave of the thread already. */
#ifdef __SANITIZE_THREAD__
#define LIBUNWIND NULL
#else
#define LIBUNWIND dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL)
#endif

#define MAX_SITES 4096
#define INDEX_SIZE (2 * MAX_SITES)
#define SPARE_FRAMES 16 /* of our own, and of the unwinder */
#define PAUSE_NS 1000000
#define BURST 128 /* more than a device has marks: only a process of many devices, or one gone wrong, is held back */

typedef int (*unwind_fn)(void **frames, int room);

struct site {
  uint64_t hash;
  int frames;
  uint64_t pc[BSG_MAX_FRAMES];
};

static struct {
  pthread_mutex_t lock;
  _Atomic(unwind_fn) unwind;     /* NULL until bsg_sites_prepare() has tried it */
  const char *unwinder;          /* its name; NULL as above */
  _Atomic int64_t paid_until_ns; /* of stacks taken so far, at one a pause */
  uint32_t count;
  uint32_t index[INDEX_SIZE];                  /* open addressing by hash; 0: free */
  struct site sites[MAX_SITES];                /* site n is sites[n - 1] */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER}; /* all zero: pages that nobody touches are never there */

void bsg_sites_prepare(void) {
  void *frames[4];
  void *library = LIBUNWIND;
  /* libunwind's own backtrace(), under the name that no other library has. */
  unwind_fn unwind = library ? (unwind_fn)dlsym(library, "unw_backtrace") : NULL;

  state.unwinder = unwind ? "libunwind" : "glibc";
  if (!unwind)
    unwind = backtrace;
  unwind(frames, 4);
  atomic_store(&state.unwind, unwind);
  dlerror(); /* what we tried is no news to the program */
}

const char *bsg_sites_unwinder(void) {
  return state.unwinder;
}

static uint64_t hash_frames(void *const *frames, int count) {
  uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a over whole addresses */
  for (int i = 0; i < count; i++)
    hash = (hash ^ (uint64_t)(uintptr_t)frames[i]) * 0x100000001b3u;
  return hash ^ hash >> 29;
}

static bool same(const struct site *site, uint64_t hash, void *const *frames, int count) {
  if (site->hash != hash || site->frames != count)
    return false;
  for (int i = 0; i < count; i++)
    if (site->pc[i] != (uint64_t)(uintptr_t)frames[i])
      return false;
  return true;
}

/* Caller holds the lock. */
static uint32_t intern(void *const *frames, int count) {
  uint64_t hash = hash_frames(frames, count);
  uint32_t at = (uint32_t)(hash % INDEX_SIZE);
  struct site *site;

  for (; state.index[at]; at = (at + 1) % INDEX_SIZE)
    if (same(&state.sites[state.index[at] - 1], hash, frames, count))
      return state.index[at];
  if (state.count == MAX_SITES)
    return BSG_NO_SITE;
  site = &state.sites[state.count];
  site->hash = hash;
  site->frames = count;
  for (int i = 0; i < count; i++)
    site->pc[i] = (uint64_t)(uintptr_t)frames[i];
  return state.index[at] = ++state.count;
}

uint32_t bsg_sites_here(const void *caller) {
  void *frames[BSG_MAX_FRAMES + SPARE_FRAMES];
  unwind_fn unwind = atomic_load(&state.unwind);
  uint32_t site;
  int count, first = 0;

  if (!unwind)
    return BSG_NO_SITE;
  count = unwind(frames, BSG_MAX_FRAMES + SPARE_FRAMES);
  while (first < count && frames[first] != caller)
    first++;
  if (first == count) /* the wrapper's frame was not recognised: better our own frames too than none */
    first = 0;
  count -= first;
  if (count <= 0)
    return BSG_NO_SITE;
  if (count > BSG_MAX_FRAMES)
    count = BSG_MAX_FRAMES;
  pthread_mutex_lock(&state.lock);
  site = intern(frames + first, count);
  pthread_mutex_unlock(&state.lock);
  return site;
}

uint32_t bsg_sites_sometimes_here(const void *caller) {
  struct timespec now;
  int64_t now_ns, paid_until_ns = atomic_load(&state.paid_until_ns), from_ns;

  clock_gettime(CLOCK_MONOTONIC, &now);
  now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
  do {
    if (paid_until_ns - now_ns > (int64_t)(BURST - 1) * PAUSE_NS)
      return BSG_NO_SITE;
    from_ns = paid_until_ns > now_ns ? paid_until_ns : now_ns;
  } while (!atomic_compare_exchange_weak(&state.paid_until_ns, &paid_until_ns, from_ns + PAUSE_NS));
  return bsg_sites_here(caller);
}

int bsg_sites_get(uint32_t site, struct bsg_site_fact *out) {
  int result = -ENOENT;
  pthread_mutex_lock(&state.lock);
  if (site != BSG_NO_SITE && site <= state.count) {
    const struct site *found = &state.sites[site - 1];
    out->site = site;
    out->frames = found->frames;
    memcpy(out->pc, found->pc, (size_t)found->frames * sizeof out->pc[0]);
    result = 0;
  }
  pthread_mutex_unlock(&state.lock);
  return result;
}

void bsg_sites_forget(void) {
  pthread_mutex_init(&state.lock, NULL);
}
