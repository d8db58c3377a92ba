/*
 * lookups.c - finds cuMemAlloc and its kin in one way, allocates, and prints what bsguard saw of it, as JSON.
 *
 *   lookups handle | default | next | dependent LIBRARY | self
 *   lookups gpa1 VERSION FLAGS | gpa2 VERSION FLAGS | cudart VERSION FLAGS
 */
#include <string.h>

#include "driver.h"

#define BYTES ((size_t)3 << 20)

struct found {
  PFN_cuMemAlloc_v3020 alloc;
  PFN_cuMemAlloc_v2000 alloc_old; /* instead, where the version asked for is that old */
  PFN_cuMemFree_v3020 free;
  PFN_cuMemFree_v2000 free_old;
};

static void by_dlsym(void *handle, struct found *out) {
  out->alloc = (PFN_cuMemAlloc_v3020)dlsym(handle, "cuMemAlloc_v2");
  out->free = (PFN_cuMemFree_v3020)dlsym(handle, "cuMemFree_v2");
}

static void *answer(const char *name, int version, cuuint64_t flags, void *first, void *second) {
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  void *entry = NULL;
  if (second) {
    CHECK_EQUAL(((PFN_cuGetProcAddress_v12000)second)(name, &entry, version, flags, &status), CUDA_SUCCESS);
    CHECK_EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);
  } else
    CHECK_EQUAL(((PFN_cuGetProcAddress_v11030)first)(name, &entry, version, flags), CUDA_SUCCESS);
  CHECK(entry);
  return entry;
}

static void by_address(int version, cuuint64_t flags, void *first, void *second, struct found *out) {
  void *alloc = answer("cuMemAlloc", version, flags, first, second);
  void *release = answer("cuMemFree", version, flags, first, second);
  if (version >= 3020) {
    out->alloc = (PFN_cuMemAlloc_v3020)alloc;
    out->free = (PFN_cuMemFree_v3020)release;
  } else {
    out->alloc_old = (PFN_cuMemAlloc_v2000)alloc;
    out->free_old = (PFN_cuMemFree_v2000)release;
  }
}

static void find(int argc, char **argv, void *driver, struct found *out) {
  const char *way = argc > 1 ? argv[1] : "";
  int version = argc > 2 ? atoi(argv[2]) : 0;
  cuuint64_t flags = argc > 3 ? (cuuint64_t)atoi(argv[3]) : 0;

  if (strcmp(way, "handle") == 0)
    by_dlsym(driver, out);
  else if (strcmp(way, "default") == 0)
    by_dlsym(RTLD_DEFAULT, out);
  else if (strcmp(way, "next") == 0)
    by_dlsym(RTLD_NEXT, out);
  else if (strcmp(way, "self") == 0)
    by_dlsym(dlopen(NULL, RTLD_NOW), out);
  else if (strcmp(way, "dependent") == 0) /* the handle of a library that itself needs libcuda */
    by_dlsym(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL), out);
  else if (strcmp(way, "gpa1") == 0)
    by_address(version, flags, dlsym(driver, "cuGetProcAddress"), NULL, out);
  else if (strcmp(way, "gpa2") == 0)
    by_address(version, flags, NULL, dlsym(driver, "cuGetProcAddress_v2"), out);
  else if (strcmp(way, "cudart") == 0) {
    /* As libcudart 12 does: the address of one by dlsym(), of the other by that, and all else by those. */
    void *second = dlsym(driver, "cuGetProcAddress_v2"), *first;
    first = answer("cuGetProcAddress", 11030, 0, NULL, second);
    second = answer("cuGetProcAddress", 12000, 0, NULL, second);
    by_address(version, flags, first, version >= 12000 ? second : NULL, out);
  } else {
    fprintf(stderr, "lookups: no way %s\n", way);
    exit(2);
  }
}

int main(int argc, char **argv) {
  void *driver = driver_open();
  uint64_t (*used)(int) = (uint64_t(*)(int))dlsym(driver, "simgpu_used");
  struct found found = {0};
  struct bsg_memory during, after;
  CUdeviceptr address = 0;
  CUdeviceptr_v1 old_address = 0;
  uint64_t driver_during;

  find(argc, argv, driver, &found);
  CHECK(found.alloc || found.alloc_old);
  if (found.alloc)
    CHECK_EQUAL(found.alloc(&address, BYTES), CUDA_SUCCESS);
  else
    CHECK_EQUAL(found.alloc_old(&old_address, BYTES), CUDA_SUCCESS);
  during = guarded_memory();
  driver_during = used(0);
  if (found.free)
    CHECK_EQUAL(found.free(address), CUDA_SUCCESS);
  else
    CHECK_EQUAL(found.free_old(old_address), CUDA_SUCCESS);
  after = guarded_memory();
  printf("{\"seen\": %llu, \"driver\": %llu, \"left\": %llu, \"peak\": %llu, \"driver_left\": %llu}\n",
         (unsigned long long)during.live_bytes, (unsigned long long)driver_during, (unsigned long long)after.live_bytes,
         (unsigned long long)after.peak_bytes, (unsigned long long)used(0));
  return 0;
}
