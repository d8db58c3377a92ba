/*
 * stress.c - every route to memory of the simulated driver, at random, from many threads, with failures at random and
 * with allocations that another thread frees. The program keeps its own sums; whenever the threads meet, and at the
 * end, they must be the driver's, to the byte and for each kind of memory; and in the end nothing may be left.
 *
 *   simgpu_stress THREADS OPERATIONS [SEED]      operations of each thread
 *
 * Exit status 0 when all agreed; 1 and a line on stderr for each disagreement.
 */
#include <cuda.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "create_context.h"
#include "driver/simgpu.h"

#define MEETINGS 4
#define HELD 48
#define MOST_THREADS 64
#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

enum route {
  PLAIN,
  PITCH,
  MANAGED,
  ASYNC,
  FROM_POOL,
  VIRTUAL,
  ARRAY,
  MIPMAP,
  PINNED,
  REGISTERED,
  IPC,
  EXTERNAL,
  GRAPH,
  QUEUE,
  MODULE,
  CONTEXT,
  ROUTES
};

static const enum simgpu_kind kind_of[ROUTES] = {
    [PLAIN] = SIMGPU_PLAIN,    [PITCH] = SIMGPU_PLAIN,       [MANAGED] = SIMGPU_MANAGED, [ASYNC] = SIMGPU_POOL,
    [FROM_POOL] = SIMGPU_POOL, [VIRTUAL] = SIMGPU_VMM,       [ARRAY] = SIMGPU_ARRAY,     [MIPMAP] = SIMGPU_ARRAY,
    [PINNED] = SIMGPU_PINNED,  [REGISTERED] = SIMGPU_PINNED, [IPC] = SIMGPU_MAPPED,      [EXTERNAL] = SIMGPU_MAPPED,
    [GRAPH] = SIMGPU_GRAPH,    [QUEUE] = SIMGPU_QUEUE,       [MODULE] = SIMGPU_MODULE,   [CONTEXT] = SIMGPU_CONTEXT};

/* What a thread holds; only the members that its route needs are set. */
struct item {
  bool live;
  enum route route;
  uint64_t bytes;
  CUdeviceptr address;
  void *host;
  CUmemoryPool pool;
  CUmemGenericAllocationHandle handle;
  bool mapped, released;
  CUarray array;
  CUmipmappedArray mipmap;
  CUexternalMemory external;
  CUgraph graph;
  CUgraphExec executable;
  CUstream stream;
  CUevent event;
  CUmodule module;
};

static struct {
  _Atomic int64_t sum[SIMGPU_KINDS];
  _Atomic CUdeviceptr left[HELD]; /* plain allocations of LEFT_BYTES that anybody may free */
  atomic_int wrong;
  pthread_barrier_t meeting;
  CUcontext primary;
  uint64_t operations, seed;
  uint64_t queue, module; /* bytes that one of them takes */
} state;

#define LEFT_BYTES 7000

static void expect(bool right, const char *what, uint64_t is, uint64_t wanted) {
  if (right)
    return;
  if (atomic_fetch_add(&state.wrong, 1) < 20)
    fprintf(stderr, "stress: %s: %" PRIu64 " instead of %" PRIu64 "\n", what, is, wanted);
}

/* A call that must not fail. */
static void sure(CUresult result, const char *what) {
  expect(!result, what, (uint64_t)result, 0);
}

static uint64_t next(uint64_t *random) {
  *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
  return *random;
}

static void count(enum route route, int64_t bytes) {
  atomic_fetch_add(&state.sum[kind_of[route]], bytes);
}

/* ---- making; each returns the driver's answer and sets bytes where it was CUDA_SUCCESS ---- */
static CUresult make_virtual(struct item *item, uint64_t size) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result;
  item->bytes = (1 + size % 3) * 2 * MIB;
  result = cuMemCreate(&item->handle, item->bytes, &prop, 0);
  if (result)
    return result;
  item->mapped = size % 5 != 0;
  if (item->mapped) {
    sure(cuMemAddressReserve(&item->address, item->bytes, 0, 0, 0), "cuMemAddressReserve");
    sure(cuMemMap(item->address, item->bytes, 0, item->handle, 0), "cuMemMap");
    sure(cuMemSetAccess(item->address, item->bytes, &access, 1), "cuMemSetAccess");
  }
  item->released = item->mapped && size % 2;
  if (item->released)
    sure(cuMemRelease(item->handle), "cuMemRelease");
  return CUDA_SUCCESS;
}

static CUresult make_graph(struct item *item, uint64_t size) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
      .bytesize = size};
  CUgraphNode node;
  CUresult result = cuGraphCreate(&item->graph, 0);
  sure(result, "cuGraphCreate");
  sure(cuGraphAddMemAllocNode(&node, item->graph, NULL, 0, &params), "cuGraphAddMemAllocNode");
  item->address = params.dptr;
  params.bytesize = size / 2 + 1;
  sure(cuGraphAddMemAllocNode(&node, item->graph, NULL, 0, &params), "cuGraphAddMemAllocNode");
  sure(cuGraphAddMemFreeNode(&node, item->graph, NULL, 0, params.dptr), "cuGraphAddMemFreeNode");
  result = cuGraphInstantiateWithFlags(&item->executable, item->graph, 0);
  if (!result) {
    count(QUEUE, (int64_t)state.queue);
    result = cuGraphLaunch(item->executable, NULL);
    if (result) {
      sure(cuGraphExecDestroy(item->executable), "cuGraphExecDestroy");
      count(QUEUE, -(int64_t)state.queue);
    }
  }
  if (result)
    sure(cuGraphDestroy(item->graph), "cuGraphDestroy");
  item->bytes = size;
  return result;
}

static CUresult make_queue(struct item *item) {
  CUresult result = cuStreamCreate(&item->stream, CU_STREAM_NON_BLOCKING);
  if (result)
    return result;
  result = cuEventCreate(&item->event, 0);
  if (result)
    sure(cuStreamDestroy(item->stream), "cuStreamDestroy");
  item->bytes = 2 * state.queue;
  return result;
}

/* A context of its own, some memory in it, and its end: all of it must be gone at once. */
static CUresult make_context(struct item *item, uint64_t size) {
  CUcontext context;
  CUdeviceptr address;
  CUarray array;
  CUmodule module;
  CUDA_ARRAY_DESCRIPTOR desc = {size % 100 + 1, 10, CU_AD_FORMAT_FLOAT, 1};
  CUresult result = create_context(&context);
  item->bytes = 0;
  if (result)
    return result;
  for (int i = 0; i < 4; i++)
    cuMemAlloc(&address, size + 1);
  cuArrayCreate(&array, &desc);
  cuModuleLoadData(&module, "image");
  sure(cuCtxDestroy(context), "cuCtxDestroy");
  return CUDA_ERROR_OUT_OF_MEMORY; /* nothing is held */
}

static CUresult make(struct item *item, uint64_t *random) {
  uint64_t size = next(random) % (next(random) % 8 ? 100 * KIB : 3 * MIB) + 1;
  CUDA_ARRAY3D_DESCRIPTOR desc = {size % 300 + 1, size % 7, 0, CU_AD_FORMAT_FLOAT, 2, 0};
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC external = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = size};
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUipcMemHandle handle;
  CUresult result;
  size_t pitch;

  *item = (struct item){.route = next(random) % ROUTES, .bytes = size};
  switch (item->route) {
  case PLAIN:
    return cuMemAlloc(&item->address, size);
  case PITCH:
    result = cuMemAllocPitch(&item->address, &pitch, size / 10 + 1, 10, 4);
    item->bytes = result ? 0 : pitch * 10;
    return result;
  case MANAGED:
    return cuMemAllocManaged(&item->address, size, CU_MEM_ATTACH_GLOBAL);
  case ASYNC:
    return cuMemAllocAsync(&item->address, size, NULL);
  case FROM_POOL:
    sure(cuMemPoolCreate(&item->pool, &props), "cuMemPoolCreate");
    result = cuMemAllocFromPoolAsync(&item->address, size, item->pool, NULL);
    if (result || size % 2) /* it lives on until its memory is free */
      sure(cuMemPoolDestroy(item->pool), "cuMemPoolDestroy");
    if (size % 2)
      item->pool = NULL;
    return result;
  case VIRTUAL:
    return make_virtual(item, size);
  case ARRAY:
    item->bytes = desc.Width * (desc.Height ? desc.Height : 1) * 8;
    return cuArray3DCreate(&item->array, &desc);
  case MIPMAP:
    desc.Height = 0;
    item->bytes = (desc.Width + (desc.Width > 1 ? desc.Width / 2 : 1)) * 8;
    return cuMipmappedArrayCreate(&item->mipmap, &desc, 2);
  case PINNED:
    return cuMemHostAlloc(&item->host, size, 0);
  case REGISTERED:
    item->host = malloc(size);
    result = cuMemHostRegister(item->host, size, 0);
    if (result)
      free(item->host);
    return result;
  case IPC:
    simgpu_ipc_handle(0, size, &handle);
    return cuIpcOpenMemHandle(&item->address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  case EXTERNAL:
    external.handle.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    return cuImportExternalMemory(&item->external, &external);
  case GRAPH:
    return make_graph(item, size);
  case QUEUE:
    return make_queue(item);
  case MODULE:
    item->bytes = state.module;
    return cuModuleLoadData(&item->module, "image");
  default:
    return make_context(item, size);
  }
}

/* ---- ending ---- */
static void end(struct item *item) {
  switch (item->route) {
  case ASYNC:
  case FROM_POOL:
    sure(item->bytes % 2 ? cuMemFree(item->address) : cuMemFreeAsync(item->address, NULL), "cuMemFreeAsync");
    if (item->pool)
      sure(cuMemPoolDestroy(item->pool), "cuMemPoolDestroy");
    break;
  case VIRTUAL:
    if (item->mapped) {
      sure(cuMemUnmap(item->address, item->bytes), "cuMemUnmap");
      sure(cuMemAddressFree(item->address, item->bytes), "cuMemAddressFree");
    }
    if (!item->released)
      sure(cuMemRelease(item->handle), "cuMemRelease");
    break;
  case ARRAY:
    sure(cuArrayDestroy(item->array), "cuArrayDestroy");
    break;
  case MIPMAP:
    sure(cuMipmappedArrayDestroy(item->mipmap), "cuMipmappedArrayDestroy");
    break;
  case PINNED:
    sure(cuMemFreeHost(item->host), "cuMemFreeHost");
    break;
  case REGISTERED:
    sure(cuMemHostUnregister(item->host), "cuMemHostUnregister");
    free(item->host);
    break;
  case IPC:
    sure(cuIpcCloseMemHandle(item->address), "cuIpcCloseMemHandle");
    break;
  case EXTERNAL:
    sure(cuDestroyExternalMemory(item->external), "cuDestroyExternalMemory");
    break;
  case GRAPH:
    sure(cuGraphDestroy(item->graph), "cuGraphDestroy");
    sure(cuGraphExecDestroy(item->executable), "cuGraphExecDestroy");
    count(QUEUE, -(int64_t)state.queue);
    sure(cuMemFree(item->address), "cuMemFree of a graph's memory");
    break;
  case QUEUE:
    sure(cuStreamDestroy(item->stream), "cuStreamDestroy");
    sure(cuEventDestroy(item->event), "cuEventDestroy");
    break;
  case MODULE:
    sure(cuModuleUnload(item->module), "cuModuleUnload");
    break;
  default:
    sure(cuMemFree(item->address), "cuMemFree");
  }
  count(item->route, -(int64_t)item->bytes);
  item->live = false;
}

/* Leaves an allocation for another thread, and frees the one that lay there. */
static void swap(uint64_t *random) {
  CUdeviceptr address = 0;
  if (cuMemAlloc(&address, LEFT_BYTES) == CUDA_SUCCESS)
    count(PLAIN, LEFT_BYTES);
  address = atomic_exchange(&state.left[next(random) % HELD], address);
  if (!address)
    return;
  sure(cuMemFree(address), "cuMemFree of another thread's");
  count(PLAIN, -LEFT_BYTES);
}

static void settle(uint64_t which) {
  CUmemoryPool pool;
  switch (which % 3) {
  case 0:
    sure(cuCtxSynchronize(), "cuCtxSynchronize");
    break;
  case 1:
    sure(cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
    sure(cuMemPoolTrimTo(pool, MIB), "cuMemPoolTrimTo");
    break;
  default:
    sure(cuDeviceGraphMemTrim(0), "cuDeviceGraphMemTrim");
  }
}

/* ---- the sums ---- */
static void compare(const char *when) {
  static const char *const names[SIMGPU_KINDS] = {"plain",   "managed", "pool",  "graph",  "vmm",   "array",
                                                  "context", "module",  "queue", "pinned", "mapped"};
  uint64_t used = 0;
  char what[64];
  for (int kind = 0; kind < SIMGPU_KINDS; kind++) {
    uint64_t is = simgpu_requested_by(0, kind), wanted = (uint64_t)state.sum[kind];
    snprintf(what, sizeof what, "%s, requested %s bytes", when, names[kind]);
    expect(is == wanted, what, is, wanted);
    used += simgpu_used_by(0, kind);
  }
  expect(used == simgpu_used(0), "the kinds together", used, simgpu_used(0));
}

static void *work(void *argument) {
  static _Thread_local struct item items[HELD];
  uint64_t random = (state.seed + (uintptr_t)argument) * 0x9E3779B97F4A7C15u | 1;
  CUcontext context;
  sure(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  sure(cuCtxSetCurrent(state.primary), "cuCtxSetCurrent");
  for (int meeting = 0; meeting < MEETINGS; meeting++) {
    for (uint64_t i = 0; i < state.operations / MEETINGS; i++) {
      struct item *item = &items[next(&random) % HELD];
      if (next(&random) % 16 == 0) {
        swap(&random);
      } else if (next(&random) % 64 == 0) {
        settle(next(&random));
      } else if (item->live) {
        end(item);
      } else {
        CUresult result = make(item, &random);
        expect(!result || result == CUDA_ERROR_OUT_OF_MEMORY, "result of an allocation", (uint64_t)result, 0);
        item->live = !result;
        if (item->live)
          count(item->route, (int64_t)item->bytes);
      }
    }
    if (pthread_barrier_wait(&state.meeting) == PTHREAD_BARRIER_SERIAL_THREAD)
      compare("when the threads met");
    pthread_barrier_wait(&state.meeting);
  }
  for (int i = 0; i < HELD; i++) {
    if (items[i].live)
      end(&items[i]);
  }
  sure(cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
  return NULL;
}

/* Bytes that one more stream or module takes. */
static void prices(void) {
  CUstream stream;
  CUmodule module;
  sure(cuStreamCreate(&stream, 0), "cuStreamCreate");
  state.queue = simgpu_requested_by(0, SIMGPU_QUEUE);
  sure(cuStreamDestroy(stream), "cuStreamDestroy");
  sure(cuModuleLoadData(&module, "image"), "cuModuleLoadData");
  state.module = simgpu_requested_by(0, SIMGPU_MODULE);
  sure(cuModuleUnload(module), "cuModuleUnload");
  state.sum[SIMGPU_CONTEXT] = (int64_t)simgpu_requested_by(0, SIMGPU_CONTEXT);
}

int main(int argc, char **argv) {
  pthread_t threads[MOST_THREADS];
  int count = argc > 2 ? atoi(argv[1]) : 0;
  if (count < 1 || count > MOST_THREADS || argc > 4) {
    fprintf(stderr, "usage: simgpu_stress THREADS OPERATIONS [SEED], up to %d threads\n", MOST_THREADS);
    return 2;
  }
  state.operations = strtoull(argv[2], NULL, 10);
  state.seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
  pthread_barrier_init(&state.meeting, NULL, (unsigned)count);
  sure(cuInit(0), "cuInit");
  sure(cuDevicePrimaryCtxRetain(&state.primary, 0), "cuDevicePrimaryCtxRetain");
  sure(cuCtxSetCurrent(state.primary), "cuCtxSetCurrent");
  prices();
  simgpu_fail_every(11);
  for (int i = 0; i < count; i++)
    pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1));
  for (int i = 0; i < count; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < HELD; i++) {
    if (state.left[i])
      sure(cuMemFree(state.left[i]), "cuMemFree of what was left");
  }
  sure(cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
  expect(simgpu_used(0) == 0, "used at the end", simgpu_used(0), 0);
  expect(simgpu_live(0) == 0, "live at the end", simgpu_live(0), 0);
  expect(simgpu_failures() > 0, "failures", 0, 1);
  printf("%d threads, %" PRIu64 " operations each, seed %" PRIu64 ": %" PRIu64 " allocation calls, %" PRIu64
         " refused, peak %" PRIu64 " bytes, %d disagreements\n",
         count, state.operations, state.seed, simgpu_calls(), simgpu_failures(), simgpu_peak(0, 0), state.wrong);
  return state.wrong != 0;
}
