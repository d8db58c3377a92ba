/*
 * versions.c - calls dlsym by each version that glibc has given it. A program built long ago asks for the old one; both
 * must reach bsguard. Prints "GLIBC_2.2.5=1" for each that did: what it finds in libcuda is then not in libcuda.
 */
#include <string.h>

#include "driver.h"

#if defined(__x86_64__)
#define OLD "GLIBC_2.2.5"
#else
#define OLD "GLIBC_2.17"
#endif
#define NEW "GLIBC_2.34"

void *dlsym_old(void *handle, const char *name);
__asm__(".symver dlsym_old, dlsym@" OLD);
#if __GLIBC_PREREQ(2, 34)
void *dlsym_new(void *handle, const char *name);
__asm__(".symver dlsym_new, dlsym@" NEW);
#endif

static void say(const char *version, void *entry) {
  Dl_info info;
  CHECK(entry && dladdr(entry, &info));
  printf("%s=%d\n", version, strstr(info.dli_fname, "libbsguard.so") != NULL);
}

int main(void) {
  void *driver = driver_open();
  say(OLD, dlsym_old(driver, "cuMemAlloc_v2"));
#if __GLIBC_PREREQ(2, 34)
  say(NEW, dlsym_new(driver, "cuMemAlloc_v2"));
#endif
  return 0;
}
