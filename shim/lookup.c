/*
 * lookup.c - see lookup.h. Depends on libc's linker interface and on the table of hooks/cuda/. Reached by every dlsym()
 * of the process, in every state that it can be in: so it allocates nothing, and does nothing at all for a name that is
 * not the driver's. dlopen() is used, never interposed: RUNPATH means the caller's.
 */
#include "shim/lookup.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "hooks/cuda/hooks.h"
#include "hooks/cuda/symbols.h"
#include "shim/root.h"

typedef void *(*dlsym_fn)(void *handle, const char *name);

/* Written once with one value, read by dlsym.S. */
_Atomic(dlsym_fn) bsg_lookup_real_dlsym __attribute__((visibility("hidden")));

static struct {
  _Atomic(void *) libcuda; /* our own handle of it, never closed: entries that we know stay valid */
} state;

/*
 * dlvsym() is not interposed, and is asked by version, so it cannot answer with our own dlsym(). The oldest version
 * comes first: every glibc of this architecture has it, and a look-up that fails allocates, which never ends where
 * another preload's malloc() asks dlsym() for the next one.
 */
static dlsym_fn real_dlsym(void) {
#ifdef __aarch64__
  static const char *const versions[] = {"GLIBC_2.17", "GLIBC_2.34"};
#else
  static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.34"};
#endif
  dlsym_fn real = atomic_load_explicit(&bsg_lookup_real_dlsym, memory_order_acquire);
  for (size_t i = 0; !real && i < sizeof versions / sizeof versions[0]; i++)
    real = (dlsym_fn)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  atomic_store_explicit(&bsg_lookup_real_dlsym, real, memory_order_release);
  return real;
}

static void *libcuda(void) {
  void *handle = atomic_load_explicit(&state.libcuda, memory_order_acquire);
  if (!handle && (handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)))
    atomic_store_explicit(&state.libcuda, handle, memory_order_release);
  return handle;
}

void *bsg_lookup_driver(const char *symbol) {
  void *handle = libcuda();
  void *entry = handle ? real_dlsym()(handle, symbol) : NULL;
  dlerror();
  return entry;
}

void *bsg_lookup_next(const char *symbol) {
  void *entry = real_dlsym()(RTLD_NEXT, symbol);
  dlerror();
  return entry ? entry : bsg_lookup_driver(symbol);
}

void *bsg_lookup_default(const char *symbol) {
  void *entry = real_dlsym()(RTLD_DEFAULT, symbol);
  dlerror();
  return entry;
}

static const struct bsg_lookup_answer go_on = {NULL, 0};

/* NULL, and dlerror() says why: by a real look-up that must fail. */
static struct bsg_lookup_answer no_driver(const char *name) {
  if (libcuda())
    real_dlsym()(libcuda(), name);
  else
    real_dlsym()(RTLD_DEFAULT, "a CUDA driver symbol (libcuda.so.1 is not loaded)");
  return (struct bsg_lookup_answer){NULL, 1};
}

/* But for us, would nobody define this? True without a driver, and where it is older than the function. */
static int is_ours_alone(const char *name, const void *wrapper) {
  if (!libcuda())
    return 1;
  if (bsg_hook_in_driver(name))
    return 0;
  return bsg_lookup_default(name) == wrapper && !bsg_lookup_next(name);
}

/*
 * Would RTLD_NEXT of a library that comes after us find the driver's own, with nobody in between? Where another
 * interposer defines the name, its calls to the next one have passed us already, and are not to come back.
 */
static int goes_past_us(const void *caller, const char *name) {
  void *driver = bsg_lookup_driver(name);
  return driver && bsg_symbols_next(caller, name) == driver && bsg_lookup_next(name) == driver;
}

/* Only for names of the driver: the shape of all of them, from cuInit to cuGetProcAddress_v2. */
static inline int may_be_driver(const char *name) {
  return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

struct bsg_lookup_answer bsg_lookup_filter(void *handle, const char *name, const void *caller) {
  void *wrapper, *found;

  if (!real_dlsym()) /* not a glibc that we know: there is nothing to go on to */
    return (struct bsg_lookup_answer){NULL, 1};
  if (!may_be_driver(name) || bsg_hooks_depth > 0 || !(wrapper = bsg_hook_wrapper(name)))
    return go_on;

  if (handle == RTLD_NEXT || handle == RTLD_DEFAULT) {
    /*
     * Both search the program's own libraries in order, and we stand in front of the driver there: the real answer is
     * the caller's next, us or an interposer that goes on to us.
     */
    if (is_ours_alone(name, wrapper))
      return no_driver(name);
    bsg_root_start();
    if (handle == RTLD_NEXT && bsg_root_active() && goes_past_us(caller, name) &&
        bsg_hook_adopt(name, bsg_lookup_driver(name)))
      return (struct bsg_lookup_answer){wrapper, 1};
    return go_on;
  }

  found = real_dlsym()(handle, name);
  if (!found)
    return go_on;       /* to fail in the same way */
  if (found == wrapper) /* the program's own handle */
    return is_ours_alone(name, wrapper) ? no_driver(name) : (struct bsg_lookup_answer){found, 1};
  bsg_root_start();
  if (!bsg_root_active() || !bsg_hook_adopt(name, found))
    return go_on;
  dlerror();
  return (struct bsg_lookup_answer){wrapper, 1};
}
