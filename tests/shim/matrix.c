/*
 * matrix.c - looks the driver's functions up in every way that programs use, and prints what each look-up found. What
 * it prints without a preload is what it must print with one, but for the file of those that are hooked. Taken from
 * hooks.def, so that a new line is tried by itself, and some functions that are none of ours.
 *
 *   WAY NAME [VERSION FLAGS] SYMBOL FILE      "-" for NULL
 *
 *   matrix NAME...    ways: handle, default, next, self, linked, table (cuGetProcAddress, both of them)
 *   matrix replay     look-ups of a runtime, from standard input: NAME VERSION FLAGS
 *
 * The same file is the program, a library whose constructor does it (BSG_EARLY), and one that is opened by its path
 * (BSG_OPENED).
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim/bsguard.h"
#include "tests/shim/check.h"

/* Weak: an older driver lacks some. */
#define BSG_HOOK(symbol, name, since, stream, kind, type) extern __typeof__(symbol) symbol __attribute__((weak));
#include "hooks/cuda/hooks.def"
#undef BSG_HOOK

struct name {
  const char *symbol, *name;
  void *linked;
};

static const struct name hooked[] = {
#define BSG_HOOK(symbol, name, since, stream, kind, type) {#symbol, #name, (void *)symbol},
#include "hooks/cuda/hooks.def"
#undef BSG_HOOK
};
static const char *const others[] = {"cuInit",        "cuCtxGetCurrent",     "cuMemcpyHtoD_v2", "cuMemcpyAsync",
                                     "cuStreamQuery", "cuStreamSynchronize", "cuNoSuchThing"};
static const int versions[] = {1000,  2000,  3020,  4000,  6050,  7000,  10000, 10020, 11000, 11020,
                               11030, 11040, 11080, 12000, 12020, 12030, 12040, 12050, 12090, 13000};

#define COUNT(array) (sizeof array / sizeof array[0])

static void say(const char *way, const char *name, const char *rest, void *found) {
  Dl_info info = {0};
  const char *file = "-", *symbol = "-";
  if (found && dladdr(found, &info) && info.dli_fname) {
    file = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
    symbol = info.dli_sname && info.dli_saddr == found ? info.dli_sname : "?";
  }
  printf("%s %s %s%s %s\n", way, name, rest, symbol, file);
}

static void by_dlsym(const char *way, void *handle) {
  for (size_t i = 0; i < COUNT(hooked); i++)
    say(way, hooked[i].symbol, "", dlsym(handle, hooked[i].symbol));
  for (size_t i = 0; i < COUNT(others); i++)
    say(way, others[i], "", dlsym(handle, others[i]));
}

static void ask(const char *way, void *first, void *second, const char *name, int version, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status;
  void *entry = NULL;
  char rest[64];
  if (second)
    ((PFN_cuGetProcAddress_v12000)second)(name, &entry, version, flags, &status);
  else
    ((PFN_cuGetProcAddress_v11030)first)(name, &entry, version, flags);
  snprintf(rest, sizeof rest, "%d %d ", version, (int)flags);
  say(way, name, rest, entry);
}

static void by_table(void *driver) {
  void *first = dlsym(driver, "cuGetProcAddress"), *second = dlsym(driver, "cuGetProcAddress_v2");
  for (size_t i = 0; i < COUNT(hooked) + COUNT(others); i++) {
    const char *name = i < COUNT(hooked) ? hooked[i].name : others[i - COUNT(hooked)];
    if (i > 0 && i < COUNT(hooked) && strcmp(name, hooked[i - 1].name) == 0)
      continue;
    for (size_t v = 0; v < COUNT(versions); v++)
      for (cuuint64_t flags = 0; flags <= 2; flags++) {
        if (first)
          ask("table1", first, NULL, name, versions[v], flags);
        if (second)
          ask("table2", NULL, second, name, versions[v], flags);
      }
  }
}

/* As a runtime does: the first entry by dlsym(), which may be asked for itself again, and everything else by that. */
static void replay(void *driver) {
  void *second = dlsym(driver, "cuGetProcAddress_v2"), *first = dlsym(driver, "cuGetProcAddress"), *entry;
  char name[128];
  int version, flags;
  CUdriverProcAddressQueryResult status;

  ask("replay", first, second, "", 0, 0);
  while (scanf("%127s %d %d", name, &version, &flags) == 3) {
    ask("replay", first, second, name, version, (cuuint64_t)flags);
    if (strcmp(name, "cuGetProcAddress") != 0)
      continue;
    entry = NULL;
    if (version >= 12000 && second) {
      ((PFN_cuGetProcAddress_v12000)second)(name, &entry, version, (cuuint64_t)flags, &status);
      second = entry;
    } else if (!second) {
      ((PFN_cuGetProcAddress_v11030)first)(name, &entry, version, (cuuint64_t)flags);
      first = entry;
    }
  }
}

static void run(const char *way) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(driver);
  if (strcmp(way, "handle") == 0)
    by_dlsym(way, driver);
  else if (strcmp(way, "default") == 0)
    by_dlsym(way, RTLD_DEFAULT);
  else if (strcmp(way, "next") == 0)
    by_dlsym(way, RTLD_NEXT);
  else if (strcmp(way, "self") == 0)
    by_dlsym(way, dlopen(NULL, RTLD_NOW));
  else if (strcmp(way, "linked") == 0)
    for (size_t i = 0; i < COUNT(hooked); i++)
      say(way, hooked[i].symbol, "", hooked[i].linked);
  else if (strcmp(way, "table") == 0)
    by_table(driver);
  else if (strcmp(way, "replay") == 0)
    replay(driver);
  else
    CHECK(!"known way");
}

#if defined BSG_EARLY || defined BSG_OPENED
static const char *const ways[] = {"handle", "default", "next", "linked", "table"};
static void all(void) {
  for (size_t i = 0; i < COUNT(ways); i++)
    run(ways[i]);
}
#endif

#ifdef BSG_EARLY
BSG_EXPORT void early_is_needed(void);
BSG_EXPORT void early_is_needed(void) {}
__attribute__((constructor)) static void enter(void) {
  all();
}
#elif defined BSG_OPENED
BSG_EXPORT void opened(void);
BSG_EXPORT void opened(void) {
  all();
}
#else
int main(int argc, char **argv) {
  void *library;
  for (int i = 1; i < argc; i++)
    if (strchr(argv[i], '/')) {
      CHECK((library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL)));
      ((void (*)(void))dlsym(library, "opened"))();
    } else
      run(argv[i]);
  return 0;
}
#endif
