/*
 * races.c - every entry point of the simulated driver that takes its lock, next to all others. One thread makes one
 * call over and over, each time on something of its own, while another thread makes all calls in turn; with
 * ThreadSanitizer a lock that is missing in that call is a data race. stress.c is about sums, and the locks of its
 * other calls would hide that one is missing. Without ThreadSanitizer this still sees that no call fails because of
 * another thread.
 *
 *   simgpu_races      with SIMGPU_DEVICES=2: the second device's primary context is reset all the time
 *
 * Whoever gives the driver an entry point that takes the lock adds a line to the table of steps.
 */
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "create_context.h"
#include "driver/simgpu.h"

#define REPEATS 16
#define MIB ((size_t)1 << 20)
#define ON_DEVICE                                                                                                      \
  { CU_MEM_LOCATION_TYPE_DEVICE, 0 }

/* What both threads use. */
static struct {
  CUcontext primary, context; /* of device 0 */
  CUstream stream;
  CUevent event;
  CUmemoryPool pool;
} shared;

static struct {
  pthread_barrier_t start, finish; /* two: who leaves one late must not learn what the other one did since */
  atomic_bool over;
  atomic_int wrong;
  /* What was allocated last, by whichever thread; it may be gone. */
  _Atomic CUdeviceptr plain, mapped;
  _Atomic CUmemGenericAllocationHandle handle;
  _Atomic(void *) host;
  _Atomic(CUarray) array;
} state;

/* What a step is made on; only the members that it needs are set. */
struct item {
  CUdeviceptr address;
  void *host;
  CUmemoryPool pool;
  CUmemGenericAllocationHandle handle;
  CUarray array;
  CUmipmappedArray mipmap;
  CUipcMemHandle ipc;
  CUexternalMemory external;
  CUgraph graph;
  CUgraphNode alloc_node, free_node;
  CUgraphExec executable;
  CUstream stream;
  CUevent event;
  CUmodule module;
  CUlibrary library;
  CUcontext context;
  CUgreenCtx green;
  int fd;
};

/* A call that must not fail. */
static void sure(CUresult result, const char *call) {
  if (result && atomic_fetch_add(&state.wrong, 1) < 20)
    fprintf(stderr, "races: %s gave %d\n", call, (int)result);
}

#define SURE(call, ...) sure(call(__VA_ARGS__), #call)

/* Without an order of its own, so that ThreadSanitizer sees only the order that the driver's lock makes. */
#define PUBLISH(where, what) atomic_store_explicit(&state.where, what, memory_order_relaxed)
#define PUBLISHED(where) atomic_load_explicit(&state.where, memory_order_relaxed)

/* One part of a step. */
#define ACT(name, ...)                                                                                                 \
  static void name(struct item *i) {                                                                                   \
    (void)i;                                                                                                           \
    __VA_ARGS__;                                                                                                       \
  }                                                                                                                    \
  _Static_assert(true, "ends with a semicolon")

/* ---- plain and pinned memory ---- */
ACT(allocate, SURE(cuMemAlloc, &i->address, 1000));
/* Large enough that its addresses come and go with it. */
ACT(allocate_much, SURE(cuMemAlloc, &i->address, 17 * MIB); PUBLISH(plain, i->address));
ACT(allocate_too_much,
    sure(cuMemAlloc(&i->address, MIB << 20) == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN,
         "cuMemAlloc of too much"));
ACT(deallocate, SURE(cuMemFree, i->address));
/* Of something that may be the other thread's, and gone: any answer will do. */
ACT(address_range, size_t bytes; cuMemGetAddressRange(&i->address, &bytes, PUBLISHED(plain)));
ACT(ipc_export, cuIpcGetMemHandle(&i->ipc, PUBLISHED(plain)));
ACT(copy_nothing, cuMemcpyDtoH(&i->fd, PUBLISHED(plain), 0));
ACT(memory_left, size_t left, total; SURE(cuMemGetInfo, &left, &total));
ACT(memory_in_all, size_t total; SURE(cuDeviceTotalMem, &total, 0));
ACT(pin, SURE(cuMemHostAlloc, &i->host, 5000, 0); PUBLISH(host, i->host));
ACT(unpin, SURE(cuMemFreeHost, i->host));
ACT(host_allocate, i->host = malloc(5000));
ACT(host_register, SURE(cuMemHostRegister, i->host, 5000, 0));
ACT(host_unregister, SURE(cuMemHostUnregister, i->host));
ACT(host_registered, host_allocate(i); host_register(i));
ACT(host_free, free(i->host));
ACT(host_end, host_unregister(i); host_free(i));
ACT(host_flags, unsigned flags; cuMemHostGetFlags(&flags, PUBLISHED(host)));
ACT(host_attribute, CUmemorytype type;
    cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)PUBLISHED(host)));

/* ---- pools ---- */
ACT(allocate_async, SURE(cuMemAllocAsync, &i->address, 3000, shared.stream));
ACT(deallocate_async, SURE(cuMemFreeAsync, i->address, shared.stream));
ACT(pool_create, CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = ON_DEVICE};
    SURE(cuMemPoolCreate, &i->pool, &props));
ACT(pool_choose, SURE(cuDeviceSetMemPool, 0, i->pool));
ACT(pool_destroy, SURE(cuMemPoolDestroy, i->pool));
ACT(pool_trim, SURE(cuMemPoolTrimTo, shared.pool, 0));
ACT(pool_get, cuuint64_t value; SURE(cuMemPoolGetAttribute, shared.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
ACT(pool_set, cuuint64_t value = MIB;
    SURE(cuMemPoolSetAttribute, shared.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));

static void pool_get_access(struct item *i) {
  CUmemLocation location = ON_DEVICE;
  CUmemAccess_flags flags;
  (void)i;
  SURE(cuMemPoolGetAccess, &flags, shared.pool, &location);
}

ACT(pool_set_access, SURE(cuMemPoolSetAccess, shared.pool, NULL, 0));
ACT(pool_of_device, SURE(cuDeviceGetMemPool, &i->pool, 0));

/* ---- virtual memory ---- */
static void physical_create(struct item *i) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = ON_DEVICE};
  SURE(cuMemCreate, &i->handle, 2 * MIB, &prop, 0);
  PUBLISH(handle, i->handle);
}

ACT(physical_release, SURE(cuMemRelease, i->handle));
ACT(physical_properties, CUmemAllocationProp prop; cuMemGetAllocationPropertiesFromHandle(&prop, PUBLISHED(handle)));
ACT(physical_export,
    SURE(cuMemExportToShareableHandle, &i->fd, i->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));

static void physical_exported(struct item *i) {
  physical_create(i);
  physical_export(i);
  physical_release(i);
}

ACT(physical_import, SURE(cuMemImportFromShareableHandle, &i->handle, (void *)(intptr_t)i->fd,
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
ACT(physical_close, physical_release(i); close(i->fd));
ACT(reserve, SURE(cuMemAddressReserve, &i->address, 2 * MIB, 0, 0, 0));
ACT(unreserve, SURE(cuMemAddressFree, i->address, 2 * MIB));
ACT(mappable, physical_create(i); reserve(i));
ACT(map, SURE(cuMemMap, i->address, 2 * MIB, 0, i->handle, 0); PUBLISH(mapped, i->address));
ACT(mapped, mappable(i); map(i));
ACT(unmap, SURE(cuMemUnmap, i->address, 2 * MIB));
ACT(unmapped, unreserve(i); physical_release(i));
ACT(unmap_all, unmap(i); unmapped(i));
ACT(set_access, CUmemAccessDesc access = {ON_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    SURE(cuMemSetAccess, i->address, 2 * MIB, &access, 1));

static void get_access(struct item *i) {
  CUmemLocation location = ON_DEVICE;
  unsigned long long flags;
  (void)i;
  cuMemGetAccess(&flags, &location, PUBLISHED(mapped));
}

ACT(retain_handle, SURE(cuMemRetainAllocationHandle, &i->handle, (void *)(uintptr_t)i->address));
ACT(unretain_and_unmap, physical_release(i); unmap_all(i));

/* ---- arrays, and memory of others ---- */
static const CUDA_ARRAY3D_DESCRIPTOR flat = {100, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0};

ACT(array_create, SURE(cuArray3DCreate, &i->array, &flat); PUBLISH(array, i->array));
ACT(array_describe, CUDA_ARRAY3D_DESCRIPTOR desc; cuArray3DGetDescriptor(&desc, PUBLISHED(array)));
ACT(array_destroy, SURE(cuArrayDestroy, i->array));
ACT(mipmap_create, SURE(cuMipmappedArrayCreate, &i->mipmap, &flat, 2));
ACT(mipmap_level, SURE(cuMipmappedArrayGetLevel, &i->array, i->mipmap, 1));
ACT(mipmap_destroy, SURE(cuMipmappedArrayDestroy, i->mipmap));
ACT(ipc_handle, simgpu_ipc_handle(0, MIB, &i->ipc));
ACT(ipc_open, SURE(cuIpcOpenMemHandle, &i->address, i->ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
ACT(ipc_opened, ipc_handle(i); ipc_open(i));
ACT(ipc_close, SURE(cuIpcCloseMemHandle, i->address));

static void external_import(struct item *i) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = MIB};
  desc.handle.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  SURE(cuImportExternalMemory, &i->external, &desc);
}

ACT(external_map, CUDA_EXTERNAL_MEMORY_BUFFER_DESC all = {.size = MIB};
    SURE(cuExternalMemoryGetMappedBuffer, &i->address, i->external, &all));
ACT(external_map_array, CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC levels = {.arrayDesc = flat, .numLevels = 1};
    SURE(cuExternalMemoryGetMappedMipmappedArray, &i->mipmap, i->external, &levels));
ACT(external_destroy, SURE(cuDestroyExternalMemory, i->external));
ACT(external_unmap, deallocate(i); external_destroy(i));
ACT(external_unmap_array, mipmap_destroy(i); external_destroy(i));

/* ---- graphs ---- */
ACT(graph_create, SURE(cuGraphCreate, &i->graph, 0));

static void graph_add(struct item *i) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = ON_DEVICE},
                                       .bytesize = 5000};
  SURE(cuGraphAddMemAllocNode, &i->alloc_node, i->graph, NULL, 0, &params);
  i->address = params.dptr;
}

static void graph_build(struct item *i) {
  graph_create(i);
  graph_add(i);
  SURE(cuGraphAddMemFreeNode, &i->free_node, i->graph, NULL, 0, i->address);
}

ACT(graph_nodes, size_t nodes; SURE(cuGraphGetNodes, i->graph, NULL, &nodes));
ACT(node_type, CUgraphNodeType type; SURE(cuGraphNodeGetType, i->alloc_node, &type));
ACT(node_allocates, CUDA_MEM_ALLOC_NODE_PARAMS params; SURE(cuGraphMemAllocNodeGetParams, i->alloc_node, &params));
ACT(node_frees, SURE(cuGraphMemFreeNodeGetParams, i->free_node, &i->address));
ACT(graph_destroy, SURE(cuGraphDestroy, i->graph));
ACT(graph_instantiate, SURE(cuGraphInstantiateWithFlags, &i->executable, i->graph, 0));
ACT(graph_built, graph_build(i); graph_instantiate(i));
ACT(graph_launch, SURE(cuGraphLaunch, i->executable, NULL));
ACT(executable_destroy, SURE(cuGraphExecDestroy, i->executable));
ACT(graph_end, executable_destroy(i); graph_destroy(i));
ACT(graph_trim, SURE(cuDeviceGraphMemTrim, 0));
ACT(graph_get, cuuint64_t value; SURE(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value));
ACT(graph_set, cuuint64_t value = 0; SURE(cuDeviceSetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value));

/* ---- streams and events ---- */
ACT(stream_create, SURE(cuStreamCreate, &i->stream, CU_STREAM_NON_BLOCKING));
ACT(stream_destroy, SURE(cuStreamDestroy, i->stream));
ACT(stream_query, SURE(cuStreamQuery, shared.stream));
ACT(stream_synchronize, SURE(cuStreamSynchronize, shared.stream));
ACT(stream_wait, SURE(cuStreamWaitEvent, shared.stream, shared.event, 0));
ACT(capture_begin, SURE(cuStreamBeginCapture, i->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
ACT(capturing, stream_create(i); capture_begin(i));
ACT(capture_ask, CUstreamCaptureStatus status; SURE(cuStreamIsCapturing, i->stream, &status));
ACT(capture_allocate, SURE(cuMemAllocAsync, &i->address, 5000, i->stream));
ACT(capture_end, SURE(cuStreamEndCapture, i->stream, &i->graph));
ACT(captured, graph_destroy(i); stream_destroy(i));
ACT(capture_finish, capture_end(i); captured(i));
ACT(event_create, SURE(cuEventCreate, &i->event, 0));
ACT(event_destroy, SURE(cuEventDestroy, i->event));
ACT(event_record, SURE(cuEventRecord, shared.event, shared.stream));
ACT(event_query, SURE(cuEventQuery, shared.event));
ACT(event_synchronize, SURE(cuEventSynchronize, shared.event));

/* ---- modules and contexts ---- */
ACT(module_load, SURE(cuModuleLoadData, &i->module, "image"));
ACT(module_unload, SURE(cuModuleUnload, i->module));
ACT(library_load, SURE(cuLibraryLoadData, &i->library, "image", NULL, NULL, 0, NULL, NULL, 0));
ACT(library_unload, SURE(cuLibraryUnload, i->library));
ACT(context_create, SURE(create_context, &i->context); SURE(cuCtxPopCurrent, &i->context));
ACT(context_destroy, SURE(cuCtxDestroy, i->context));
ACT(context_ask, unsigned version; SURE(cuCtxGetApiVersion, shared.context, &version));
ACT(context_synchronize, SURE(cuCtxSynchronize));
ACT(context_enter, SURE(cuCtxPushCurrent, shared.context));
ACT(context_leave, SURE(cuCtxPopCurrent, &i->context));

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* they still count */
ACT(context_attach, SURE(cuCtxAttach, &i->context, 0));
ACT(context_detach, SURE(cuCtxDetach, shared.context); context_leave(i));

#pragma GCC diagnostic pop

ACT(primary_retain, SURE(cuDevicePrimaryCtxRetain, &i->context, 1));
ACT(primary_release, SURE(cuDevicePrimaryCtxRelease, 1));
ACT(primary_reset, SURE(cuDevicePrimaryCtxReset, 1));
ACT(primary_set_flags, SURE(cuDevicePrimaryCtxSetFlags, 1, 0));

static void primary_state(struct item *i) {
  unsigned flags;
  int active;
  (void)i;
  SURE(cuDevicePrimaryCtxGetState, 1, &flags, &active);
}

static void green_create(struct item *i) {
  CUdevResource all;
  CUdevResourceDesc desc;
  SURE(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);
  SURE(cuDevResourceGenerateDesc, &desc, &all, 1);
  SURE(cuGreenCtxCreate, &i->green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM);
}

ACT(green_context, SURE(cuCtxFromGreenCtx, &i->context, i->green));
ACT(green_destroy, SURE(cuGreenCtxDestroy, i->green));

/* ---- simgpu.h ---- */
ACT(set_capacity, simgpu_set_capacity(0, 1024 * MIB));
ACT(used, simgpu_used(0));
ACT(used_by, simgpu_used_by(0, SIMGPU_PLAIN));
ACT(peak, simgpu_peak(0, 1));
ACT(calls, simgpu_calls());
ACT(failures, simgpu_failures());
ACT(fail_at, simgpu_fail_at(0, 0));
ACT(fail_every, simgpu_fail_every(0));
ACT(fail_size, simgpu_fail_size(1ull << 40));
ACT(fail_calls, simgpu_fail_calls(1));

/* ---- the steps: what must be there, the call in question, and what undoes both ---- */
static const struct step {
  void (*before)(struct item *), (*call)(struct item *), (*after)(struct item *);
} steps[] = {
    {NULL, allocate, deallocate},
    {allocate, deallocate, NULL},
    {NULL, allocate_much, deallocate},
    {allocate_much, deallocate, NULL},
    {NULL, allocate_too_much, NULL},
    {NULL, address_range, NULL},
    {NULL, ipc_export, NULL},
    {NULL, copy_nothing, NULL},
    {NULL, memory_left, NULL},
    {NULL, memory_in_all, NULL},
    {NULL, pin, unpin},
    {pin, unpin, NULL},
    {host_allocate, host_register, host_end},
    {host_registered, host_unregister, host_free},
    {NULL, host_flags, NULL},
    {NULL, host_attribute, NULL},

    {NULL, allocate_async, deallocate},
    {allocate_async, deallocate_async, NULL},
    {NULL, pool_create, pool_destroy},
    {pool_create, pool_choose, pool_destroy},
    {pool_create, pool_destroy, NULL},
    {NULL, pool_trim, NULL},
    {NULL, pool_get, NULL},
    {NULL, pool_set, NULL},
    {NULL, pool_get_access, NULL},
    {NULL, pool_set_access, NULL},
    {NULL, pool_of_device, NULL},

    {NULL, physical_create, physical_release},
    {physical_create, physical_release, NULL},
    {NULL, physical_properties, NULL},
    {physical_create, physical_export, physical_close},
    {physical_exported, physical_import, physical_close},
    {NULL, reserve, unreserve},
    {reserve, unreserve, NULL},
    {mappable, map, unmap_all},
    {mapped, unmap, unmapped},
    {mapped, set_access, unmap_all},
    {NULL, get_access, NULL},
    {mapped, retain_handle, unretain_and_unmap},

    {NULL, array_create, array_destroy},
    {NULL, array_describe, NULL},
    {array_create, array_destroy, NULL},
    {NULL, mipmap_create, mipmap_destroy},
    {mipmap_create, mipmap_level, mipmap_destroy},
    {mipmap_create, mipmap_destroy, NULL},
    {ipc_handle, ipc_open, ipc_close},
    {ipc_opened, ipc_close, NULL},
    {NULL, external_import, external_destroy},
    {external_import, external_map, external_unmap},
    {external_import, external_map_array, external_unmap_array},
    {external_import, external_destroy, NULL},

    {NULL, graph_create, graph_destroy},
    {graph_create, graph_add, graph_destroy},
    {graph_build, graph_nodes, graph_destroy},
    {graph_build, node_type, graph_destroy},
    {graph_build, node_allocates, graph_destroy},
    {graph_build, node_frees, graph_destroy},
    {graph_build, graph_destroy, NULL},
    {graph_build, graph_instantiate, graph_end},
    {graph_built, graph_launch, graph_end},
    {graph_built, executable_destroy, graph_destroy},
    {NULL, graph_trim, NULL},
    {NULL, graph_get, NULL},
    {NULL, graph_set, NULL},

    {NULL, stream_create, stream_destroy},
    {stream_create, stream_destroy, NULL},
    {NULL, stream_query, NULL},
    {NULL, stream_synchronize, NULL},
    {NULL, stream_wait, NULL},
    {stream_create, capture_begin, capture_finish},
    {capturing, capture_ask, capture_finish},
    {capturing, capture_allocate, capture_finish},
    {capturing, capture_end, captured},
    {NULL, event_create, event_destroy},
    {event_create, event_destroy, NULL},
    {NULL, event_record, NULL},
    {NULL, event_query, NULL},
    {NULL, event_synchronize, NULL},

    {NULL, module_load, module_unload},
    {module_load, module_unload, NULL},
    {NULL, library_load, library_unload},
    {library_load, library_unload, NULL},
    {NULL, context_create, context_destroy},
    {context_create, context_destroy, NULL},
    {NULL, context_ask, NULL},
    {NULL, context_synchronize, NULL},
    {context_enter, context_attach, context_detach},
    {NULL, primary_retain, primary_release},
    {primary_retain, primary_release, NULL},
    {primary_retain, primary_reset, primary_release},
    {NULL, primary_set_flags, NULL},
    {NULL, primary_state, NULL},
    {NULL, green_create, green_destroy},
    {green_create, green_context, green_destroy},
    {green_create, green_destroy, NULL},

    {NULL, set_capacity, NULL},
    {NULL, used, NULL},
    {NULL, used_by, NULL},
    {NULL, peak, NULL},
    {NULL, calls, NULL},
    {NULL, failures, NULL},
    {NULL, fail_at, NULL},
    {NULL, fail_every, NULL},
    {NULL, fail_size, NULL},
    {NULL, fail_calls, NULL},
};

#define STEPS (sizeof steps / sizeof *steps)

static void each(void (*part)(struct item *), struct item *items) {
  for (int i = 0; part && i < REPEATS; i++)
    part(&items[i]);
}

static void *one_call(void *unused) {
  static struct item items[REPEATS];
  SURE(cuCtxSetCurrent, shared.primary);
  for (size_t step = 0; step < STEPS; step++) {
    each(steps[step].before, items);
    pthread_barrier_wait(&state.start);
    each(steps[step].call, items);
    atomic_store_explicit(&state.over, true, memory_order_relaxed);
    pthread_barrier_wait(&state.finish);
    each(steps[step].after, items);
  }
  return unused;
}

static void *all_calls(void *unused) {
  struct item item = {0};
  SURE(cuCtxSetCurrent, shared.primary);
  for (size_t step = 0; step < STEPS; step++) {
    atomic_store_explicit(&state.over, false, memory_order_relaxed);
    pthread_barrier_wait(&state.start);
    do {
      for (const struct step *s = steps; s < steps + STEPS; s++) {
        if (s->before)
          s->before(&item);
        s->call(&item);
        if (s->after)
          s->after(&item);
      }
    } while (!atomic_load_explicit(&state.over, memory_order_relaxed));
    pthread_barrier_wait(&state.finish);
  }
  return unused;
}

int main(void) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = ON_DEVICE};
  pthread_t threads[2];
  SURE(cuInit, 0);
  SURE(cuDevicePrimaryCtxRetain, &shared.primary, 0);
  SURE(create_context, &shared.context);
  SURE(cuCtxSetCurrent, shared.primary);
  SURE(cuStreamCreate, &shared.stream, CU_STREAM_NON_BLOCKING);
  SURE(cuEventCreate, &shared.event, 0);
  SURE(cuMemPoolCreate, &shared.pool, &props);
  pthread_barrier_init(&state.start, NULL, 2);
  pthread_barrier_init(&state.finish, NULL, 2);
  pthread_create(&threads[0], NULL, one_call, NULL);
  pthread_create(&threads[1], NULL, all_calls, NULL);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  printf("%zu steps: %d calls failed\n", STEPS, state.wrong);
  return state.wrong != 0;
}
