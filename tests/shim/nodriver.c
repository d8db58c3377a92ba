/*
 * nodriver.c - a process without a CUDA driver, which finds out by looking: no look-up may lead to our exports, with an
 * error that dlerror() explains; and whoever calls one all the same is told that there is no driver.
 */
#include <string.h>

#include "driver.h"

/* Bound by the loader, to our export: nothing that a look-up could refuse. */
__attribute__((weak)) CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);

int main(int argc, char **argv) {
  static const char *const names[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuGetProcAddress",
                                      "cuGetProcAddress_v2"};
  void *handles[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_NOW)};
  CUdeviceptr address = 0;
  (void)argv;

  CHECK(!dlopen("libcuda.so.1", RTLD_NOW));
  for (size_t h = 0; h < sizeof handles / sizeof handles[0]; h++)
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
      const char *error;
      dlerror();
      CHECK(!dlsym(handles[h], names[n]));
      error = dlerror();
      CHECK(error);
    }
  /* Names of other libraries are found as ever, and leave no error. */
  CHECK(dlsym(RTLD_DEFAULT, "strlen"));
  CHECK(!dlerror());
  CHECK(!dlsym(RTLD_DEFAULT, "cuNotOfOurs"));
  CHECK(strstr(dlerror(), "cuNotOfOurs"));
  if (argc > 1) { /* under the preload */
    CHECK(cuMemAlloc_v2);
    CHECK_EQUAL(cuMemAlloc_v2(&address, 1), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQUAL(address, 0);
  } else
    CHECK(!cuMemAlloc_v2);
  return 0;
}
