/*
 * hooks.c - see hooks.h. Depends on the host's two look-ups only. Never calls the driver and never takes a lock: a slot
 * is written with the same value by whoever comes first.
 */
#include "hooks/cuda/hooks.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "hooks/cuda/driver.h"
#include "hooks/cuda/host.h"
#include "shim/bsguard.h"

enum stream { ANY, LEGACY, PER_THREAD };

struct hook {
  const char *symbol;
  const char *name;
  uint8_t symbol_length, name_length; /* compared first: many begin alike */
  int since;
  enum stream stream;
  void *wrapper;
};

/* Another name by which a hook's entry is asked for. */
struct alias {
  enum bsg_hook_id id;
  const char *name;
  int since;
  enum stream stream;
};

/* Where a hook's real entries are. */
struct slot {
  _Atomic(void *) driver; /* libcuda's export */
  _Atomic(void *) next;   /* what our wrapper stands in front of: an export, or an answer of cuGetProcAddress() */
  atomic_bool unhooked;   /* said so */
};

/* Wrappers are declared with the types of the table: a wrapper that differs does not compile. */
#define BSG_HOOK(symbol, name, since, stream, kind, type)                                                              \
  _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), type), #symbol " is not of type " #type);
#include "hooks/cuda/hooks.def"
#undef BSG_HOOK

static const struct hook hooks[BSG_HOOK_COUNT] = {
#define BSG_HOOK(symbol, name, since, stream, kind, type)                                                              \
  {#symbol, #name, sizeof #symbol - 1, sizeof #name - 1, since, stream, (void *)symbol},
#include "hooks/cuda/hooks.def"
#undef BSG_HOOK
};

#define BSG_HOOK(symbol, name, since, stream, kind, type)
#define BSG_HOOK_ALIAS(symbol, name, since, stream) {BSG_HOOK_##symbol, #name, since, stream},
static const struct alias aliases[] = {
#include "hooks/cuda/hooks.def"
};
#undef BSG_HOOK
#define ALIASES (sizeof aliases / sizeof aliases[0])

static struct {
  struct slot slots[BSG_HOOK_COUNT];
  atomic_bool resolved; /* every slot was looked up with the driver there: what is empty stays so */
} state;

__thread int bsg_hooks_depth;

const char *bsg_hook_symbol(enum bsg_hook_id id) {
  return hooks[id].symbol;
}

static void *load(_Atomic(void *) *entry) {
  return atomic_load_explicit(entry, memory_order_acquire);
}

static void store(_Atomic(void *) *entry, void *value) {
  atomic_store_explicit(entry, value, memory_order_release);
}

static void *driver_entry(int id) {
  void *entry = load(&state.slots[id].driver);
  if (!entry && (entry = bsg_cuda_host.driver_entry(hooks[id].symbol)))
    store(&state.slots[id].driver, entry);
  return entry;
}

static void *next_entry(int id) {
  void *entry = load(&state.slots[id].next);
  if (!entry && (entry = bsg_cuda_host.next_entry(hooks[id].symbol)))
    store(&state.slots[id].next, entry);
  return entry;
}

void *bsg_hook_real(enum bsg_hook_id id) {
  void *entry;
  if (bsg_hooks_depth > 0)
    return (entry = driver_entry(id)) ? entry : load(&state.slots[id].next);
  return next_entry(id);
}

static inline bool same(const char *left, size_t left_length, const char *right, size_t right_length) {
  return left_length == right_length && memcmp(left, right, left_length) == 0;
}

/* The line of an export's name; -1: not hooked. */
static int by_symbol(const char *symbol) {
  size_t length = strlen(symbol);
  for (int id = 0; id < BSG_HOOK_COUNT; id++)
    if (same(symbol, length, hooks[id].symbol, hooks[id].symbol_length))
      return id;
  return -1;
}

/* Looks all entries up, once: a runtime asks for hundreds of names, and a driver lacks some of ours. Done while
 * somebody looks something up, so that an allocation finds them: it may have to wait for who is in dlopen(). */
static void resolve(void) {
  bool present = false;
  if (atomic_load(&state.resolved))
    return;
  for (int id = 0; id < BSG_HOOK_COUNT; id++) {
    present |= driver_entry(id) != NULL;
    next_entry(id);
  }
  bsg_driver_prepare();
  if (present)
    atomic_store(&state.resolved, true);
}

void *bsg_hook_wrapper(const char *symbol) {
  int id = by_symbol(symbol);
  return id < 0 ? NULL : hooks[id].wrapper;
}

void *bsg_hook_known(const char *symbol) {
  int id = by_symbol(symbol);
  return id < 0 ? NULL : load(&state.slots[id].driver);
}

bool bsg_hook_in_driver(const char *symbol) {
  int id = by_symbol(symbol);
  return id >= 0 && driver_entry(id);
}

bool bsg_hook_adopt(const char *symbol, void *found) {
  int id = by_symbol(symbol);
  if (id < 0)
    return false;
  if (!driver_entry(id))
    store(&state.slots[id].next, found);
  resolve();
  return found == driver_entry(id) || found == next_entry(id);
}

bool bsg_hook_is_wrapper(const void *entry) {
  for (int id = 0; id < BSG_HOOK_COUNT; id++)
    if (entry == hooks[id].wrapper)
      return true;
  return false;
}

static bool stream_fits(enum stream stream, unsigned long long flags) {
  bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  return stream == ANY || (stream == PER_THREAD) == per_thread;
}

/* The line for a request, as the driver would choose it; -1: none. */
static int by_table(const char *name, int version, unsigned long long flags) {
  size_t length = strlen(name);
  int best = -1, best_since = -1;
  for (int id = 0; id < BSG_HOOK_COUNT; id++)
    if (hooks[id].since > best_since && version >= hooks[id].since && stream_fits(hooks[id].stream, flags) &&
        same(name, length, hooks[id].name, hooks[id].name_length))
      best = id, best_since = hooks[id].since;
  for (size_t i = 0; i < ALIASES; i++)
    if (aliases[i].since > best_since && version >= aliases[i].since && stream_fits(aliases[i].stream, flags) &&
        strcmp(name, aliases[i].name) == 0)
      best = (int)aliases[i].id, best_since = aliases[i].since;
  return best;
}

/* The line of an address. Where a driver gives one address to several, the line that the request names, else the
 * newest. */
static int by_identity(const void *entry, int requested) {
  int best = -1;
  resolve();
  for (int id = 0; id < BSG_HOOK_COUNT; id++)
    if (entry == load(&state.slots[id].driver) || entry == load(&state.slots[id].next)) {
      if (id == requested)
        return id;
      best = id;
    }
  return best;
}

/* The first line of a name; -1: no name of ours. */
static int by_name(const char *name) {
  size_t length = strlen(name);
  for (int id = 0; id < BSG_HOOK_COUNT; id++)
    if (same(name, length, hooks[id].name, hooks[id].name_length) ||
        same(name, length, hooks[id].symbol, hooks[id].symbol_length))
      return id;
  return -1;
}

enum bsg_match bsg_hook_match(const char *name, int version, unsigned long long flags, void **entry) {
  if (bsg_hook_is_wrapper(*entry))
    return BSG_MATCH_WRAPPER;
  int first = by_name(name);
  int requested = by_table(name, version, flags);
  int id = by_identity(*entry, requested);
  if (id < 0 && requested >= 0 && version <= BSG_HOOKS_COMPLETE_TO) {
    id = requested;
    store(&state.slots[id].next, *entry);
  }
  if (id < 0)
    return first >= 0 && !atomic_exchange(&state.slots[first].unhooked, true) ? BSG_MATCH_UNHOOKED : BSG_MATCH_NONE;
  *entry = hooks[id].wrapper;
  return BSG_MATCH_WRAPPER;
}
