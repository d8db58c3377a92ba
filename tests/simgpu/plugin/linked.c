/*
 * linked.c - binds the driver as a program linked with -lcuda does: plain undefined symbols, resolved by the dynamic
 * linker in the global scope, so a preload that exports them comes first. Loaded by driver.cc for SIMGPU_BIND=linked.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <string.h>

__attribute__((visibility("default"))) void *simgpu_linked(const char *name);

/* The function that this library was linked to; NULL for a name that the plug-in does not use. */
void *simgpu_linked(const char *name) {
  const struct {
    const char *name;
    void *function;
  } functions[] = {
#define DRIVER(field, symbol, bare) {#symbol, (void *)symbol},
#include "driver.def"
#undef DRIVER
  };
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    if (strcmp(functions[i].name, name) == 0)
      return functions[i].function;
  }
  return NULL;
}
