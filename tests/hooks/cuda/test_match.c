/* How answers of cuGetProcAddress and dlsym are matched to wrappers, and that the real entry is the right one. */
#include <string.h>

#include "fake.h"
#include "hooks/cuda/hooks.h"
#include "shim/bsguard.h"
#include "tests/shim/check.h"

#define PER_THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

/* Given to cuGetProcAddress() by a driver whose table is unlike its exports, or by an interposer in front of it. */
static int table_calls;
static CUresult table_alloc(CUdeviceptr *address, size_t bytes) {
  PFN_cuMemAlloc_v3020 alloc = (PFN_cuMemAlloc_v3020)fake_entry("cuMemAlloc_v2");
  table_calls++;
  return alloc(address, bytes);
}

/* An interposer that goes on to what dlsym() gave it: our own wrapper. */
static int interposed_frees;
static CUresult interposed_free(CUdeviceptr address) {
  interposed_frees++;
  return cuMemFree_v2(address);
}

static CUresult unknown(void) {
  return CUDA_SUCCESS;
}

static void *match(const char *name, int version, unsigned long long flags, void *entry, enum bsg_match expected) {
  CHECK_EQUAL(bsg_hook_match(name, version, flags, &entry), expected);
  return entry;
}

static void test_identity(void) {
  static const struct {
    const char *name, *export;
    int version;
    void *wrapper;
  } cases[] = {{"cuMemAlloc", "cuMemAlloc", 2000, cuMemAlloc},
               {"cuMemAlloc", "cuMemAlloc_v2", 3020, cuMemAlloc_v2},
               {"cuMemAlloc", "cuMemAlloc_v2", 12000, cuMemAlloc_v2},
               {"cuMemAlloc_v2", "cuMemAlloc_v2", 3020, cuMemAlloc_v2},
               /* Newer than we know, but the driver gives an entry that we do. */
               {"cuMemAlloc", "cuMemAlloc_v2", 99000, cuMemAlloc_v2},
               /* The driver's word counts, not the version: it gave the old one. */
               {"cuMemAlloc", "cuMemAlloc", 12000, cuMemAlloc},
               {"cuMemAllocPitch", "cuMemAllocPitch_v2", 3020, cuMemAllocPitch_v2},
               {"cuMemAllocManaged", "cuMemAllocManaged", 6000, cuMemAllocManaged},
               {"cuMemFree", "cuMemFree", 2000, cuMemFree},
               {"cuMemGetInfo", "cuMemGetInfo_v2", 3020, cuMemGetInfo_v2}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (unsigned long long flags = 0; flags <= 2; flags++)
      CHECK(match(cases[i].name, cases[i].version, flags, fake_entry(cases[i].export), BSG_MATCH_WRAPPER) ==
            cases[i].wrapper);
  /* Our own wrapper (the driver looked its entries up through dlsym()) stays. */
  CHECK(match("cuMemFree", 3020, 0, (void *)cuMemFree_v2, BSG_MATCH_WRAPPER) == (void *)cuMemFree_v2);
  /* What is not in the table is no business of ours. */
  CHECK(match("cuLaunchHostFunc", 7000, PER_THREAD, (void *)unknown, BSG_MATCH_NONE) == (void *)unknown);
}

static void test_newer_abi(void) {
  /* cuMemAllocManaged_v2 of some future: passed through, and said once. */
  CHECK(match("cuMemAllocManaged", 14000, 0, (void *)unknown, BSG_MATCH_UNHOOKED) == (void *)unknown);
  CHECK(match("cuMemAllocManaged", 14000, 0, (void *)unknown, BSG_MATCH_NONE) == (void *)unknown);
  /* Older than any ABI of the name. */
  CHECK(match("cuMemAllocPitch", 1000, 0, (void *)unknown, BSG_MATCH_UNHOOKED) == (void *)unknown);
}

/* A table entry unlike the export: our wrapper goes on to that entry, not to the export. */
static void test_table(void) {
  CUdeviceptr address = 0;
  void *wrapper = match("cuMemAlloc", 3020, 0, (void *)table_alloc, BSG_MATCH_WRAPPER);
  CHECK(wrapper == (void *)cuMemAlloc_v2);
  CHECK_EQUAL(((PFN_cuMemAlloc_v3020)wrapper)(&address, 512), CUDA_SUCCESS);
  CHECK_EQUAL(table_calls, 1);
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
}

/* An interposer whose next is us: one level in, we go on to the driver, so it is no loop, and the call counts once. */
static void test_no_loop(void) {
  CUdeviceptr address = 0;
  int frees = fake.frees;
  void *wrapper = match("cuMemFree", 3020, 0, (void *)interposed_free, BSG_MATCH_WRAPPER);
  CHECK(wrapper == (void *)cuMemFree_v2);
  CHECK_EQUAL(cuMemAlloc_v2(&address, 512), CUDA_SUCCESS);
  CHECK_EQUAL(((PFN_cuMemFree_v3020)wrapper)(address), CUDA_SUCCESS);
  CHECK_EQUAL(interposed_frees, 1);
  CHECK_EQUAL(fake.frees, frees + 1);
}

static void test_exports(void) {
  CHECK(bsg_hook_wrapper("cuMemAlloc_v2") == (void *)cuMemAlloc_v2);
  CHECK(!bsg_hook_wrapper("cuLaunchHostFunc"));
  CHECK(!bsg_hook_wrapper("cuMemAlloc_v"));
  CHECK(bsg_hook_is_wrapper((void *)cuMemGetInfo));
  CHECK(!bsg_hook_is_wrapper(fake_entry("cuMemGetInfo")));
  CHECK(strcmp(bsg_hook_symbol(BSG_HOOK_cuMemAllocPitch_v2), "cuMemAllocPitch_v2") == 0);
  /* By dlsym(): the driver's own is answered for, a namesake is not. */
  CHECK(bsg_hook_adopt("cuMemGetInfo_v2", fake_entry("cuMemGetInfo_v2")));
  CHECK(!bsg_hook_adopt("cuMemGetInfo_v2", (void *)unknown));
}

/* Two names, one address: the ABI that the request names, for the other one takes arguments of another width. */
static void *alias_entry(const char *symbol) {
  return fake_entry(strcmp(symbol, "cuMemGetInfo") == 0 ? "cuMemGetInfo_v2" : symbol);
}

static void test_alias(void) {
  void *both = fake_entry("cuMemGetInfo_v2");
  CHECK(match("cuMemGetInfo", 3020, 0, both, BSG_MATCH_WRAPPER) == (void *)cuMemGetInfo_v2);
  CHECK(match("cuMemGetInfo", 2000, 0, both, BSG_MATCH_WRAPPER) == (void *)cuMemGetInfo);
  CHECK(match("other", 3020, 0, both, BSG_MATCH_WRAPPER) == (void *)cuMemGetInfo_v2);
}

/* A runtime asks for hundreds of names: ours are looked up once, those that the driver lacks too. */
static int look_ups;
static void *counting_entry(const char *symbol) {
  look_ups++;
  return strstr(symbol, "Managed") ? NULL : fake_entry(symbol);
}

static void test_look_ups(void) {
  int first;
  match("cuLaunchHostFunc", 7000, 0, (void *)unknown, BSG_MATCH_NONE);
  first = look_ups;
  CHECK(first > 0);
  for (int i = 0; i < 400; i++)
    match("cuLaunchHostFunc", 7000, 0, (void *)unknown, BSG_MATCH_NONE);
  CHECK_EQUAL(look_ups, first);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "alias") == 0) {
    fake.entry = alias_entry;
    test_alias();
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "look-ups") == 0) {
    fake.entry = counting_entry;
    test_look_ups();
    return 0;
  }
  test_identity();
  test_newer_abi();
  test_exports();
  test_table();
  test_no_loop();
  return 0;
}
