/*
 * test_routes.c - the routes to device memory, one by one, on the simulated driver: what each is entered as, when it
 * goes again, and what is told of calls that were refused.
 */
#include <string.h>

#include "hooks/cuda/ledger.h"
#include "hooks/cuda/record.h"
#include "hooks/cuda/sites.h"
#include "simulated.h"
#include "tests/shim/check.h"

#define MIB ((uint64_t)1 << 20)

static void sure(CUresult result) {
  CHECK_EQUAL(result, CUDA_SUCCESS);
}

static uint64_t kind(enum bsg_kind kind) {
  struct bsg_memory_fact memory;
  CHECK_EQUAL(bsg_record_memory(0, true, &memory), 0);
  return memory.kind_bytes[kind];
}

static uint64_t live(void) {
  struct bsg_memory_fact memory;
  uint64_t sum = 0;
  CHECK_EQUAL(bsg_record_memory(0, true, &memory), 0);
  for (int k = 0; k < BSG_KIND_APART; k++)
    sum += memory.kind_bytes[k];
  CHECK_EQUAL(memory.live_bytes, sum);
  return memory.live_bytes;
}

static CUcontext start(void) {
  CUcontext context;
  sure(cuInit(0));
  sure(cuDevicePrimaryCtxRetain(&context, 0));
  sure(cuCtxSetCurrent(context));
  return context;
}

/* Handles and mappings, the last one of both, in any order. */
static void test_virtual(void) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle handle, again;
  CUdeviceptr address;

  sure(cuMemAddressReserve(&address, 8 * MIB, 0, 0, 0));
  sure(cuMemCreate(&handle, 2 * MIB, &prop, 0));
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 2 * MIB);
  sure(cuMemMap(address, 2 * MIB, 0, handle, 0));
  sure(cuMemMap(address + 2 * MIB, 2 * MIB, 0, handle, 0)); /* twice */
  sure(cuMemRelease(handle));
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 2 * MIB);
  sure(cuMemUnmap(address, 2 * MIB));
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 2 * MIB);
  sure(cuMemRetainAllocationHandle(&again, (void *)(address + 3 * MIB))); /* not its first byte */
  sure(cuMemUnmap(address + 2 * MIB, 2 * MIB));
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 2 * MIB);
  CHECK(cuMemRelease(again + 100) != CUDA_SUCCESS);
  sure(cuMemRelease(again));
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 0);
  CHECK_EQUAL(simgpu_used_by(0, SIMGPU_VMM), 0);

  /* One unmapping of several; one that is refused changes nothing. */
  for (int i = 0; i < 3; i++) {
    sure(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    sure(cuMemMap(address + i * 2 * MIB, 2 * MIB, 0, handle, 0));
    sure(cuMemRelease(handle));
  }
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 6 * MIB);
  CHECK(cuMemUnmap(address, 3 * MIB) != CUDA_SUCCESS);
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 6 * MIB);
  sure(cuMemUnmap(address, 6 * MIB));
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 0);
  sure(cuMemAddressFree(address, 8 * MIB));

  /* Exported and imported by one process: one piece. */
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  sure(cuMemCreate(&handle, 2 * MIB, &prop, 0));
  {
    int fd;
    sure(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    sure(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  }
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 2 * MIB);
  sure(cuMemRelease(handle));
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 2 * MIB);
  sure(cuMemRelease(again));
  CHECK_EQUAL(kind(BSG_KIND_VIRTUAL), 0);
}

/* What a pool has reserved is gone from the device, in use or not, and what lies idle is a holder. */
static void test_pools(void) {
  struct bsg_holder_fact holders[4];
  CUmemoryPool pool;
  CUdeviceptr one, two;
  uint64_t keep = UINT64_MAX;

  sure(cuDeviceGetDefaultMemPool(&pool, 0));
  sure(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  sure(cuMemAllocAsync(&one, 3 * MIB, NULL));
  sure(cuMemAllocAsync(&two, MIB / 2, NULL));
  CHECK_EQUAL(kind(BSG_KIND_POOL), simgpu_reserved(0));
  CHECK_EQUAL(kind(BSG_KIND_POOL), 4 * MIB);
  CHECK_EQUAL(kind(BSG_KIND_POOLED), 3 * MIB + MIB / 2);
  CHECK_EQUAL(live(), 4 * MIB);
  sure(cuMemFreeAsync(one, NULL));
  CHECK_EQUAL(live(), 4 * MIB); /* the pool keeps it */
  CHECK_EQUAL(bsg_record_holders(0, holders, 4), 2);
  CHECK_EQUAL(holders[0].bytes, 3 * MIB + MIB / 2);
  CHECK_EQUAL(holders[0].kind, BSG_KIND_POOL);
  CHECK(strstr(holders[0].api, "idle"));
  CHECK_EQUAL(holders[1].bytes, MIB / 2);
  CHECK_EQUAL(holders[1].kind, BSG_KIND_POOLED);
  sure(cuMemPoolTrimTo(pool, 0));
  CHECK_EQUAL(live(), 2 * MIB);
  sure(cuMemFree_v2(two)); /* the other way to free it */
  sure(cuMemPoolTrimTo(pool, 0));
  CHECK_EQUAL(live(), 0);
  CHECK_EQUAL(kind(BSG_KIND_POOLED), 0);
}

/* All that a context held goes with it, on every kind that is bound to one. */
static void test_context(CUcontext primary) {
  CUDA_ARRAY_DESCRIPTOR array_of = {1024, 64, CU_AD_FORMAT_FLOAT, 4};
  CUcontext context;
  CUdeviceptr stays, goes;
  CUarray array;
  void *host;

  sure(cuMemAlloc_v2(&stays, MIB));
  sure(cuCtxCreate_v2(&context, 0, 0));
  sure(cuMemAlloc_v2(&goes, 2 * MIB));
  sure(cuMemAllocManaged(&goes, MIB, CU_MEM_ATTACH_GLOBAL));
  sure(cuArrayCreate_v2(&array, &array_of));
  sure(cuMemHostAlloc(&host, MIB, 0));
  CHECK_EQUAL(live(), 5 * MIB);
  CHECK_EQUAL(kind(BSG_KIND_ARRAY), MIB);
  CHECK_EQUAL(kind(BSG_KIND_PINNED), MIB);
  CHECK(cuCtxDestroy_v2((CUcontext)&array) != CUDA_SUCCESS); /* no context */
  CHECK_EQUAL(live(), 5 * MIB);
  sure(cuCtxDestroy_v2(context));
  CHECK_EQUAL(live(), MIB);
  CHECK_EQUAL(kind(BSG_KIND_PINNED), 0);
  sure(cuCtxSetCurrent(primary));
  sure(cuMemFree_v2(stays));
}

/* The primary context: released by the last, or reset, with the device's pools. */
static void test_primary(void) {
  CUcontext context;
  CUdeviceptr address;

  sure(cuMemAlloc_v2(&address, MIB));
  sure(cuMemAllocAsync(&address, MIB, NULL));
  CHECK_EQUAL(live(), 3 * MIB);
  sure(cuDevicePrimaryCtxRetain(&context, 0));
  sure(cuDevicePrimaryCtxRelease_v2(0)); /* not the last */
  CHECK_EQUAL(live(), 3 * MIB);
  sure(cuDevicePrimaryCtxRelease_v2(0));
  CHECK_EQUAL(live(), 0);
  CHECK_EQUAL(kind(BSG_KIND_POOLED), 0);
  context = start();
  sure(cuMemAlloc_v2(&address, MIB));
  CHECK_EQUAL(live(), MIB);
  sure(cuDevicePrimaryCtxReset_v2(0));
  CHECK_EQUAL(live(), 0);
  CHECK_EQUAL(simgpu_used_by(0, SIMGPU_PLAIN), 0);
  start();
}

/* The address of a destroyed context's memory comes again in another one: it is that one's. */
static void test_address_again(CUcontext primary) {
  CUcontext first, second;
  CUdeviceptr address, again;
  sure(cuCtxCreate_v2(&first, 0, 0));
  sure(cuMemAlloc_v2(&address, MIB));
  sure(cuCtxDestroy_v2(first));
  sure(cuCtxCreate_v2(&second, 0, 0));
  sure(cuMemAlloc_v2(&again, MIB));
  CHECK_EQUAL(live(), MIB);
  sure(cuMemFree_v2(again));
  CHECK_EQUAL(live(), 0);
  sure(cuCtxDestroy_v2(second));
  sure(cuCtxSetCurrent(primary));
}

static void refused_as(CUresult result, const char *api) {
  static int before;
  CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(simulated.refusals, before + 1);
  before = simulated.refusals;
  CHECK(strcmp(simulated.last_refused.api, api) == 0);
  CHECK_EQUAL(simulated.last_refused.result, CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(simulated.last_refused.site != BSG_NO_SITE);
}

/* Calls that take memory without saying so: the next one fails, and is told. */
static void test_unsaid(void) {
  static const char ptx[] = "image";
  CUDA_MEM_ALLOC_NODE_PARAMS node_of = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
      .bytesize = MIB};
  CUcontext context;
  CUmodule module;
  CUlibrary library;
  CUstream stream;
  CUevent event;
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode node;
  void *host;

  simulated.refusals = 0;
  simgpu_fail_calls(1);
#define REFUSED(call, api)                                                                                             \
  simgpu_fail_at(1, 1);                                                                                                \
  refused_as(call, api)
  REFUSED(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate_v2");
  REFUSED(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
  REFUSED(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0), "cuLibraryLoadData");
  REFUSED(cuStreamCreate(&stream, 0), "cuStreamCreate");
  REFUSED(cuEventCreate(&event, 0), "cuEventCreate");
  REFUSED(cuMemHostAlloc(&host, 100, 0), "cuMemHostAlloc");
  sure(cuGraphCreate(&graph, 0));
  sure(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &node_of));
  REFUSED(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  simgpu_fail_at(0, 0);
  simgpu_fail_calls(0);
  sure(cuGraphInstantiateWithFlags(&exec, graph, 0));
  sure(cuGraphLaunch(exec, NULL));
  CHECK_EQUAL(kind(BSG_KIND_GRAPH), simgpu_used_by(0, SIMGPU_GRAPH));
  CHECK(kind(BSG_KIND_GRAPH) >= MIB);
  sure(cuMemFree_v2(node_of.dptr));
  sure(cuGraphExecDestroy(exec));
  sure(cuGraphDestroy(graph));
  sure(cuDeviceGraphMemTrim(0));
  CHECK_EQUAL(kind(BSG_KIND_GRAPH), 0);
}

/* Every route counts against the limit. */
static void test_limit(void) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUDA_ARRAY_DESCRIPTOR array_of = {1024, 256, CU_AD_FORMAT_FLOAT, 4};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr plain, pooled, more;
  CUmemoryPool pool;
  CUarray array;
  size_t bytes_free, bytes_total;

  simulated.limit = 12 * MIB;
  simulated.refusals = 0;
  sure(cuMemAlloc_v2(&plain, 2 * MIB));
  sure(cuMemCreate(&handle, 4 * MIB, &prop, 0));
  sure(cuMemAllocAsync(&pooled, MIB, NULL)); /* reserves 2 MiB */
  sure(cuMemAllocAsync(&more, MIB / 2, NULL));
  sure(cuMemGetInfo_v2(&bytes_free, &bytes_total));
  CHECK_EQUAL(bytes_total, 12 * MIB);
  CHECK_EQUAL(bytes_free, 4 * MIB);
  sure(cuArrayCreate_v2(&array, &array_of)); /* 4 MiB */
  CHECK_EQUAL(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(cuMemAllocAsync(&more, MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(simulated.refusals, 3);
  sure(cuMemAllocAsync(&more, MIB / 4, NULL)); /* of what the pool has idle */
  sure(cuArrayDestroy(array));
  sure(cuMemRelease(handle));
  sure(cuDeviceGetDefaultMemPool(&pool, 0));
  sure(cuDevicePrimaryCtxReset_v2(0));
  start();
  sure(cuMemGetInfo_v2(&bytes_free, &bytes_total));
  CHECK_EQUAL(bytes_free, 12 * MIB);
  simulated.limit = 0;
}

int main(void) {
  CUcontext primary = start();
  bsg_sites_prepare();
  CUdeviceptr first;
  sure(cuMemAlloc_v2(&first, 1));
  sure(cuMemFree_v2(first));
  test_virtual();
  test_pools();
  test_context(primary);
  test_address_again(primary);
  test_primary();
  test_limit();
  test_unsaid();
  CHECK_EQUAL(live(), 0);
  CHECK_EQUAL(simulated.unhooked, 0);
  return 0;
}
