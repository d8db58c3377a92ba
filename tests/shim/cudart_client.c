/*
 * cudart_client.c - a real libcudart, opened by path. Makes it look its driver functions up, whatever it then makes of
 * the driver, and finds out what it has got: its writable memory is searched for addresses of functions. Prints, as
 * JSON, which of our wrappers are there, and which functions of the driver that we have a wrapper for (there must be
 * none).
 *
 *   cudart_client LIBCUDART
 */
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/shim/check.h"

static const char *const hooked[] = {
#define BSG_HOOK(symbol, name, since, stream, kind, type) #symbol,
#include "hooks/cuda/hooks.def"
};
#define HOOKED (sizeof hooked / sizeof hooked[0])

static int found[HOOKED], past[HOOKED];

static void judge(void *word) {
  Dl_info info;
  const char *file;
  if (!dladdr(word, &info) || !info.dli_sname || info.dli_saddr != word)
    return;
  file = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
  for (size_t i = 0; i < HOOKED; i++)
    if (strcmp(info.dli_sname, hooked[i]) == 0) {
      found[i] |= strcmp(file, "libbsguard.so") == 0;
      past[i] |= strcmp(file, "libcuda.so.1") == 0;
    }
}

static int search(struct dl_phdr_info *object, size_t size, void *library) {
  (void)size;
  if (object->dlpi_addr != ((struct link_map *)library)->l_addr)
    return 0;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
    if (segment->p_type == PT_LOAD && segment->p_flags & PF_W) {
      uintptr_t from = (object->dlpi_addr + segment->p_vaddr + 7) & ~(uintptr_t)7;
      for (void **word = (void **)from; (char *)(word + 1) <= (char *)from + segment->p_memsz - 8; word++)
        if (*word)
          judge(*word);
    }
  }
  return 1;
}

static void list(const char *name, const int *which) {
  const char *separator = "";
  printf("\"%s\": [", name);
  for (size_t i = 0; i < HOOKED; i++)
    if (which[i]) {
      printf("%s\"%s\"", separator, hooked[i]);
      separator = ", ";
    }
  printf("]");
}

int main(int argc, char **argv) {
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  int (*count)(int *), (*version)(int *), (*allocate)(void **, size_t);
  int devices = -1, driver = -1, status;
  void *memory = NULL;

  CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)); /* a runtime that gives up would close it */
  if (!library)
    fprintf(stderr, "%s\n", dlerror());
  CHECK(library);
  version = (int (*)(int *))dlsym(library, "cudaDriverGetVersion");
  count = (int (*)(int *))dlsym(library, "cudaGetDeviceCount");
  allocate = (int (*)(void **, size_t))dlsym(library, "cudaMalloc");
  CHECK(version && count && allocate);
  version(&driver);
  count(&devices);
  status = allocate(&memory, 1 << 20);
  dl_iterate_phdr(search, library);
  printf("{\"driver\": %d, \"devices\": %d, \"cudaMalloc\": %d, ", driver, devices, status);
  list("ours", found);
  printf(", ");
  list("past", past);
  printf("}\n");
  return 0;
}
