/* What wrappers do around the driver's call: results and out-parameters are the driver's, facts are told, books are
 * kept. */
#include <string.h>

#include "fake.h"
#include "hooks/cuda/hooks.h"
#include "hooks/cuda/ledger.h"
#include "hooks/cuda/record.h"
#include "hooks/cuda/sites.h"
#include "shim/bsguard.h"
#include "tests/shim/check.h"

#define MIB ((uint64_t)1 << 20)
#define UNTOUCHED 0x5a5a5a5a5a5a5a5aull

static struct bsg_totals totals_of(int device) {
  struct bsg_totals totals;
  bsg_ledger_totals(device, &totals);
  return totals;
}

/* No driver: every wrapper says so. Must come first, before an entry is known. */
static void test_no_driver(void) {
  CUdeviceptr address = UNTOUCHED;
  CUdeviceptr_v1 old_address;
  size_t pitch, bytes;
  unsigned int old_pitch, old_bytes;
  void *entry;

  fake.present = false;
  CHECK_EQUAL(cuMemAlloc(&old_address, 1), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuMemAlloc_v2(&address, 1), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuMemAllocPitch(&old_address, &old_pitch, 1, 1, 4), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuMemAllocPitch_v2(&address, &pitch, 1, 1, 4), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuMemAllocManaged(&address, 1, 1), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuMemFree(1), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuMemFree_v2(1), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuMemGetInfo(&old_bytes, &old_bytes), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuMemGetInfo_v2(&bytes, &bytes), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuGetProcAddress("cuMemAlloc", &entry, 3020, 0), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(cuGetProcAddress_v2("cuMemAlloc", &entry, 3020, 0, NULL), CUDA_ERROR_NOT_INITIALIZED);
  CHECK_EQUAL(address, UNTOUCHED);
  fake.present = true;
}

static void test_off(void) {
  CUdeviceptr address;
  fake.off = true;
  CHECK_EQUAL(cuMemAlloc_v2(&address, 5 * MIB), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
  CHECK_EQUAL(fake.devices, 0);
  CHECK_EQUAL(totals_of(0).peak_bytes, 0);
  fake.off = false;
}

/* Every route, its bytes as the driver counts them. */
static void test_routes(void) {
  CUdeviceptr address, pitched, managed;
  CUdeviceptr_v1 old, old_pitched;
  size_t pitch, bytes_free, bytes_total;
  unsigned int old_pitch;

  fake_device = 1;
  fake.used_peak = 0;
  fake.where = (struct bsg_where){.step = 12, .phase = BSG_PHASE_FORWARD};
  CHECK_EQUAL(cuMemAlloc_v2(&address, 3 * MIB), CUDA_SUCCESS);
  CHECK_EQUAL(fake.devices, 1);
  CHECK(strcmp(fake.last_device.name, "Fake 1") == 0);
  CHECK_EQUAL(fake.last_device.total_bytes, fake.capacity);
  CHECK_EQUAL(fake.last_device.driver_version, 12090);
  CHECK_EQUAL(fake.marks, 1);
  CHECK_EQUAL(fake.last_mark.request_bytes, 3 * MIB);
  CHECK_EQUAL(fake.last_mark.where.step, 12);
  CHECK_EQUAL(fake.last_mark.where.phase, BSG_PHASE_FORWARD);
  CHECK_EQUAL(cuMemAllocPitch_v2(&pitched, &pitch, 1000, 10, 4), CUDA_SUCCESS);
  CHECK_EQUAL(totals_of(1).live_bytes, 3 * MIB + 10240);
  CHECK_EQUAL(cuMemAllocManaged(&managed, 100, 1), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc(&old, 7), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAllocPitch(&old_pitched, &old_pitch, 1, 2, 4), CUDA_SUCCESS);
  CHECK_EQUAL(totals_of(1).live_bytes, fake.used);
  CHECK_EQUAL(totals_of(1).live_count, 5);
  CHECK_EQUAL(totals_of(0).live_bytes, 0);
  CHECK_EQUAL(fake.devices, 1);
  CHECK_EQUAL(cuMemGetInfo_v2(&bytes_free, &bytes_total), CUDA_SUCCESS);
  CHECK_EQUAL(bytes_total, fake.capacity);
  CHECK_EQUAL(bytes_free, fake.capacity - fake.used);

  CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(pitched), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(managed), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree(old), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree(old_pitched), CUDA_SUCCESS);
  CHECK_EQUAL(totals_of(1).live_bytes, 0);
  CHECK_EQUAL(totals_of(1).peak_bytes, fake.used_peak);
  fake_device = 0;
}

static void test_refused(void) {
  CUdeviceptr address = UNTOUCHED, held;
  size_t pitch = UNTOUCHED;
  int allocs = fake.allocs;

  CHECK_EQUAL(cuMemAlloc_v2(&held, 10 * MIB), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemAlloc_v2(&address, fake.capacity), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(address, UNTOUCHED);
  CHECK_EQUAL(fake.refusals, 1);
  CHECK(strcmp(fake.last_refused.api, "cuMemAlloc_v2") == 0);
  CHECK_EQUAL(fake.last_refused.result, CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(fake.last_refused.request_bytes, fake.capacity);
  CHECK_EQUAL(fake.last_refused.live_bytes, 10 * MIB);
  CHECK_EQUAL(fake.last_refused.free_bytes, fake.capacity - 10 * MIB);
  CHECK(fake.last_refused.site != BSG_NO_SITE);
  CHECK(fake.last_refused.thread != 0);

  CHECK_EQUAL(cuMemAllocPitch_v2(&address, &pitch, fake.capacity, 2, 4), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(fake.last_refused.request_bytes, 2 * fake.capacity);
  CHECK_EQUAL(pitch, UNTOUCHED);
  /* Asked once each: we do not retry. */
  CHECK_EQUAL(fake.allocs, allocs + 3);

  /* Another error is no refusal. */
  fake.next_alloc = CUDA_ERROR_ILLEGAL_ADDRESS;
  CHECK_EQUAL(cuMemAlloc_v2(&address, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_EQUAL(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(fake.refusals, 2);
  CHECK_EQUAL(address, UNTOUCHED);

  /* What succeeds is told only while somebody waits for it. */
  CHECK_EQUAL(fake.grants, 0);
  CHECK_EQUAL(cuMemFree_v2(held), CUDA_SUCCESS);
  fake.waiting = true;
  CHECK_EQUAL(cuMemAlloc_v2(&address, 20 * MIB), CUDA_SUCCESS);
  fake.waiting = false;
  CHECK_EQUAL(fake.grants, 1);
  CHECK_EQUAL(fake.last_granted.request_bytes, 20 * MIB);
  CHECK_EQUAL(fake.last_granted.live_bytes, 20 * MIB);
  CHECK_EQUAL(fake.last_granted.freed_bytes, 10 * MIB);
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
}

static void test_frees(void) {
  CUdeviceptr address;
  int frees;

  CHECK_EQUAL(cuMemAlloc_v2(&address, MIB), CUDA_SUCCESS);
  /* Failed: it is still there. */
  fake.next_free = CUDA_ERROR_ILLEGAL_ADDRESS;
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_EQUAL(totals_of(0).live_bytes, MIB);
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
  CHECK_EQUAL(totals_of(0).live_bytes, 0);

  /* Never seen, freed twice, null: the driver's business. */
  frees = fake.frees;
  CHECK_EQUAL(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(fake.last_free, 0x1234);
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQUAL(cuMemFree_v2(0), CUDA_SUCCESS);
  CHECK_EQUAL(fake.frees, frees + 3);
  CHECK_EQUAL(totals_of(0).live_bytes, 0);
}

/* Inside a wrapper the driver's own calls only go on. */
static void test_nested(void) {
  CUdeviceptr address;
  bsg_hooks_depth++;
  CHECK_EQUAL(cuMemAlloc_v2(&address, MIB), CUDA_SUCCESS);
  CHECK_EQUAL(totals_of(0).live_bytes, 0);
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
  bsg_hooks_depth--;
}

static void test_limit(void) {
  CUdeviceptr a, b = UNTOUCHED;
  size_t bytes_free, bytes_total, pitch;
  unsigned int old_free, old_total;
  int allocs, refusals = fake.refusals;
  struct bsg_memory_fact memory;

  fake_device = 3;
  fake.limit = 10 * MIB;
  CHECK_EQUAL(cuMemAlloc_v2(&a, 6 * MIB), CUDA_SUCCESS);
  CHECK_EQUAL(fake.last_device.total_bytes, 10 * MIB);
  CHECK_EQUAL(cuMemGetInfo_v2(&bytes_free, &bytes_total), CUDA_SUCCESS);
  CHECK_EQUAL(bytes_total, 10 * MIB);
  CHECK_EQUAL(bytes_free, 4 * MIB);
  CHECK_EQUAL(cuMemGetInfo(&old_free, &old_total), CUDA_SUCCESS);
  CHECK_EQUAL(old_total, 10 * MIB);
  CHECK_EQUAL(old_free, 4 * MIB);

  allocs = fake.allocs;
  CHECK_EQUAL(cuMemAlloc_v2(&b, 4 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAlloc_v2(&b, UINT64_MAX), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(fake.allocs, allocs); /* the driver was not asked */
  CHECK_EQUAL(b, UNTOUCHED);
  CHECK_EQUAL(fake.refusals, refusals + 2);
  CHECK_EQUAL(fake.last_refused.free_bytes, 4 * MIB);
  CHECK_EQUAL(cuMemAlloc_v2(&b, 4 * MIB), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(b), CUDA_SUCCESS);

  /* A failure of the driver's own gives the room back. */
  fake.next_alloc = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK_EQUAL(cuMemAlloc_v2(&b, 4 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAllocPitch_v2(&b, &pitch, 1, 1024, 4), CUDA_SUCCESS); /* 512 KiB, not the 1 KiB asked for */
  CHECK_EQUAL(cuMemGetInfo_v2(&bytes_free, &bytes_total), CUDA_SUCCESS);
  CHECK_EQUAL(bytes_free, 4 * MIB - MIB / 2);
  CHECK_EQUAL(cuMemFree_v2(b), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
  CHECK_EQUAL(cuMemGetInfo_v2(&bytes_free, &bytes_total), CUDA_SUCCESS);
  CHECK_EQUAL(bytes_free, 10 * MIB);
  CHECK_EQUAL(bsg_record_memory(3, true, &memory), 0);
  CHECK_EQUAL(memory.total_bytes, 10 * MIB);
  CHECK_EQUAL(memory.free_bytes, 10 * MIB);
  CHECK_EQUAL(memory.live_count, 0);
  CHECK(bsg_record_memory(17, true, &memory) < 0);
  CHECK(bsg_record_memory(-1, true, &memory) < 0);
  fake.limit = 0;
  fake_device = 0;
}

static void test_forget(void) {
  CUdeviceptr address;
  int devices = fake.devices;
  CHECK_EQUAL(cuMemAlloc_v2(&address, MIB), CUDA_SUCCESS);
  bsg_record_forget();
  CHECK_EQUAL(totals_of(0).live_bytes, 0);
  CHECK_EQUAL(bsg_record_devices(), 0);
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS); /* of before: forwarded */
  CHECK_EQUAL(cuMemAlloc_v2(&address, MIB), CUDA_SUCCESS);
  CHECK_EQUAL(fake.devices, devices + 1);
  CHECK_EQUAL(cuMemFree_v2(address), CUDA_SUCCESS);
}

int main(void) {
  bsg_sites_prepare();
  test_no_driver();
  test_off();
  test_routes();
  test_refused();
  test_frees();
  test_nested();
  test_limit();
  test_forget();
  CHECK_EQUAL(fake.used, 0);
  return 0;
}
