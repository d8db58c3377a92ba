/*
 * exhausted.c - a host that runs out of memory under the simulated driver. Every call that takes memory of the host is
 * made again and again, with its first request to the host refused, then its second, and so on until it succeeds. Each
 * time the call must say so, and what it did until then must be undone: the device's sums are as before.
 *
 * The requests are the driver's calls of malloc, calloc, posix_memalign, mmap, memfd_create and ftruncate, which this
 * program answers in libc's place; not for builds with sanitizers, which do that themselves.
 */
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "create_context.h"
#include "driver/simgpu.h"

#define MIB ((uint64_t)1 << 20)
#define MOST_REQUESTS 20 /* of one call */

static struct {
  bool armed;
  int asked, refused; /* requests since the call began, and the one that is refused */
  int wrong;
  CUcontext primary;
} state;

/* ---- the host ---- */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);

static bool refuse(void) {
  if (!state.armed || ++state.asked != state.refused)
    return false;
  errno = ENOMEM;
  return true;
}

#define IN_LIBCS_PLACE __attribute__((visibility("default")))

IN_LIBCS_PLACE void *malloc(size_t bytes) {
  return refuse() ? NULL : __libc_malloc(bytes);
}

IN_LIBCS_PLACE void *calloc(size_t count, size_t bytes) {
  return refuse() ? NULL : __libc_calloc(count, bytes);
}

IN_LIBCS_PLACE int posix_memalign(void **out, size_t alignment, size_t bytes) {
  if (refuse())
    return ENOMEM;
  *out = memalign(alignment, bytes);
  return *out ? 0 : ENOMEM;
}

IN_LIBCS_PLACE void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return refuse() ? MAP_FAILED : (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

IN_LIBCS_PLACE int memfd_create(const char *name, unsigned flags) {
  return refuse() ? -1 : (int)syscall(SYS_memfd_create, name, flags);
}

IN_LIBCS_PLACE int ftruncate(int fd, off_t bytes) {
  return refuse() ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
}

/* ---- what is expected ---- */
static void expect(bool right, const char *what) {
  if (right)
    return;
  state.wrong++;
  fprintf(stderr, "exhausted: %s\n", what);
}

/* A call that must not fail. */
static void sure(CUresult result, const char *call) {
  char line[96];
  snprintf(line, sizeof line, "%s gave %d while preparing or ending", call, (int)result);
  expect(!result, line);
}

#define SURE(call, ...) sure(call(__VA_ARGS__), #call)

/* The call that a case is about. */
static CUresult tried(CUresult result) {
  state.armed = false;
  return result;
}

#define TRY(call) (state.asked = 0, state.armed = true, tried(call))

struct sums {
  uint64_t used[SIMGPU_KINDS], requested[SIMGPU_KINDS], live[SIMGPU_KINDS];
};

/* Of device 0, with what pools and graphs have reserved but do not use given back. */
static struct sums sums(void) {
  struct sums s;
  CUmemoryPool pool;
  SURE(cuDeviceGetDefaultMemPool, &pool, 0);
  SURE(cuMemPoolTrimTo, pool, 0);
  SURE(cuDeviceGraphMemTrim, 0);
  for (int kind = 0; kind < SIMGPU_KINDS; kind++) {
    s.used[kind] = simgpu_used_by(0, kind);
    s.requested[kind] = simgpu_requested_by(0, kind);
    s.live[kind] = simgpu_live_by(0, kind);
  }
  return s;
}

/* ---- the cases: each makes one thing, ends it where it was made, and returns the driver's answer ---- */
static const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static CUresult plain_of(uint64_t bytes) {
  CUdeviceptr address;
  CUresult result = TRY(cuMemAlloc(&address, bytes));
  if (!result)
    SURE(cuMemFree, address);
  return result;
}

static CUresult plain(void) {
  return plain_of(1000);
}

static CUresult plain_large(void) {
  return plain_of(17 * MIB);
}

static CUresult managed(void) {
  CUdeviceptr address;
  CUresult result = TRY(cuMemAllocManaged(&address, 1000, CU_MEM_ATTACH_GLOBAL));
  if (!result)
    SURE(cuMemFree, address);
  return result;
}

static CUresult pooled(void) {
  CUdeviceptr address;
  CUresult result = TRY(cuMemAllocAsync(&address, 18 * MIB, NULL));
  if (!result)
    SURE(cuMemFreeAsync, address, NULL);
  return result;
}

static CUresult pool(void) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemoryPool made;
  CUresult result = TRY(cuMemPoolCreate(&made, &props));
  if (!result)
    SURE(cuMemPoolDestroy, made);
  return result;
}

static CUresult physical(void) {
  CUmemGenericAllocationHandle handle;
  CUresult result = TRY(cuMemCreate(&handle, 2 * MIB, &on_device, 0));
  if (!result)
    SURE(cuMemRelease, handle);
  return result;
}

static CUresult reserved(void) {
  CUdeviceptr address;
  CUresult result = TRY(cuMemAddressReserve(&address, 2 * MIB, 0, 0, 0));
  if (!result)
    SURE(cuMemAddressFree, address, 2 * MIB);
  return result;
}

static CUresult mapped(void) {
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  CUresult result;
  SURE(cuMemCreate, &handle, 2 * MIB, &on_device, 0);
  SURE(cuMemAddressReserve, &address, 2 * MIB, 0, 0, 0);
  result = TRY(cuMemMap(address, 2 * MIB, 0, handle, 0));
  if (!result)
    SURE(cuMemUnmap, address, 2 * MIB);
  SURE(cuMemAddressFree, address, 2 * MIB);
  SURE(cuMemRelease, handle);
  return result;
}

/* From another process: the memory that this one exported must be gone here before it is imported. */
static CUresult imported(void) {
  CUmemGenericAllocationHandle handle;
  CUresult result;
  int fd = -1;
  SURE(cuMemCreate, &handle, 2 * MIB, &on_device, 0);
  SURE(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  SURE(cuMemRelease, handle);
  result = TRY(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  if (!result)
    SURE(cuMemRelease, handle);
  close(fd);
  return result;
}

static CUresult array(void) {
  CUDA_ARRAY_DESCRIPTOR desc = {100, 10, CU_AD_FORMAT_FLOAT, 1};
  CUarray made;
  CUresult result = TRY(cuArrayCreate(&made, &desc));
  if (!result)
    SURE(cuArrayDestroy, made);
  return result;
}

static const CUDA_ARRAY3D_DESCRIPTOR flat = {100, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0};

static CUresult mipmap(void) {
  CUmipmappedArray made;
  CUresult result = TRY(cuMipmappedArrayCreate(&made, &flat, 3));
  if (!result)
    SURE(cuMipmappedArrayDestroy, made);
  return result;
}

static CUresult level(void) {
  CUmipmappedArray made;
  CUarray of;
  CUresult result;
  SURE(cuMipmappedArrayCreate, &made, &flat, 3);
  result = TRY(cuMipmappedArrayGetLevel(&of, made, 1));
  SURE(cuMipmappedArrayDestroy, made);
  return result;
}

static CUresult pinned(void) {
  void *host;
  CUresult result = TRY(cuMemHostAlloc(&host, 5000, 0));
  if (!result)
    SURE(cuMemFreeHost, host);
  return result;
}

static CUresult registered(void) {
  static char mine[5000];
  CUresult result = TRY(cuMemHostRegister(mine, sizeof mine, 0));
  if (!result)
    SURE(cuMemHostUnregister, mine);
  return result;
}

static CUresult ipc(void) {
  CUipcMemHandle handle;
  CUdeviceptr address;
  CUresult result;
  simgpu_ipc_handle(0, 19 * MIB, &handle);
  result = TRY(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  if (!result)
    SURE(cuIpcCloseMemHandle, address);
  return result;
}

static CUDA_EXTERNAL_MEMORY_HANDLE_DESC elsewhere(void) {
  return (CUDA_EXTERNAL_MEMORY_HANDLE_DESC){.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
                                            .handle.fd = open("/dev/null", O_RDWR | O_CLOEXEC),
                                            .size = 20 * MIB};
}

static CUresult external(void) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = elsewhere();
  CUexternalMemory made;
  CUresult result = TRY(cuImportExternalMemory(&made, &desc));
  if (!result)
    SURE(cuDestroyExternalMemory, made);
  else
    close(desc.handle.fd); /* it was not handed over */
  return result;
}

static CUresult external_buffer(void) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = elsewhere();
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC all = {.size = 20 * MIB};
  CUexternalMemory made;
  CUdeviceptr address;
  CUresult result;
  SURE(cuImportExternalMemory, &made, &desc);
  result = TRY(cuExternalMemoryGetMappedBuffer(&address, made, &all));
  if (!result)
    SURE(cuMemFree, address);
  SURE(cuDestroyExternalMemory, made);
  return result;
}

static CUresult graph(void) {
  CUgraph made;
  CUresult result = TRY(cuGraphCreate(&made, 0));
  if (!result)
    SURE(cuGraphDestroy, made);
  return result;
}

static CUresult alloc_node(void) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
      .bytesize = 21 * MIB};
  CUgraph made;
  CUgraphNode node;
  CUresult result;
  size_t nodes = 0;
  SURE(cuGraphCreate, &made, 0);
  result = TRY(cuGraphAddMemAllocNode(&node, made, NULL, 0, &params));
  SURE(cuGraphGetNodes, made, NULL, &nodes);
  expect(nodes == (result ? 0 : 1), "a graph without the node that it was not given");
  SURE(cuGraphDestroy, made);
  return result;
}

static CUresult executable(void) {
  CUgraph made;
  CUgraphNode node;
  CUgraphExec exec;
  CUresult result;
  SURE(cuGraphCreate, &made, 0);
  SURE(cuGraphAddEmptyNode, &node, made, NULL, 0);
  result = TRY(cuGraphInstantiateWithFlags(&exec, made, 0));
  if (!result)
    SURE(cuGraphExecDestroy, exec);
  SURE(cuGraphDestroy, made);
  return result;
}

static CUresult capture(void) {
  CUstream stream;
  CUgraph made;
  CUresult result;
  SURE(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  result = TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  if (!result) {
    SURE(cuStreamEndCapture, stream, &made);
    SURE(cuGraphDestroy, made);
  }
  SURE(cuStreamDestroy, stream);
  return result;
}

static CUresult captured(void) {
  CUstream stream;
  CUgraph made;
  CUdeviceptr address;
  CUresult result;
  SURE(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  SURE(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  result = TRY(cuMemAllocAsync(&address, 22 * MIB, stream));
  SURE(cuStreamEndCapture, stream, &made);
  SURE(cuGraphDestroy, made);
  SURE(cuStreamDestroy, stream);
  return result;
}

static CUresult stream(void) {
  CUstream made;
  CUresult result = TRY(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  if (!result)
    SURE(cuStreamDestroy, made);
  return result;
}

static CUresult event(void) {
  CUevent made;
  CUresult result = TRY(cuEventCreate(&made, 0));
  if (!result)
    SURE(cuEventDestroy, made);
  return result;
}

static CUresult module(void) {
  CUmodule made;
  CUresult result = TRY(cuModuleLoadData(&made, "image"));
  if (!result)
    SURE(cuModuleUnload, made);
  return result;
}

static CUresult library(void) {
  CUlibrary made;
  CUresult result = TRY(cuLibraryLoadData(&made, "image", NULL, NULL, 0, NULL, NULL, 0));
  if (!result)
    SURE(cuLibraryUnload, made);
  return result;
}

static CUresult context(void) {
  CUcontext made;
  CUresult result = TRY(create_context(&made));
  if (!result)
    SURE(cuCtxDestroy, made);
  return result;
}

static CUresult green(void) {
  CUdevResource all;
  CUdevResourceDesc desc;
  CUgreenCtx made;
  CUresult result;
  SURE(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);
  SURE(cuDevResourceGenerateDesc, &desc, &all, 1);
  result = TRY(cuGreenCtxCreate(&made, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  if (!result)
    SURE(cuGreenCtxDestroy, made);
  return result;
}

static const struct {
  const char *name;
  CUresult (*run)(void);
  CUresult refused; /* what the call may also say then, besides CUDA_ERROR_OUT_OF_MEMORY */
} cases[] = {
#define CASE(name, answer)                                                                                             \
  { #name, name, CUDA_ERROR_##answer }
    CASE(plain, OUT_OF_MEMORY),      CASE(plain_large, OUT_OF_MEMORY),  CASE(managed, OUT_OF_MEMORY),
    CASE(pooled, OUT_OF_MEMORY),     CASE(pool, OUT_OF_MEMORY),         CASE(physical, OUT_OF_MEMORY),
    CASE(reserved, OUT_OF_MEMORY),   CASE(mapped, OUT_OF_MEMORY),       CASE(imported, OUT_OF_MEMORY),
    CASE(array, OUT_OF_MEMORY),      CASE(mipmap, OUT_OF_MEMORY),       CASE(level, OUT_OF_MEMORY),
    CASE(pinned, OUT_OF_MEMORY),     CASE(registered, OUT_OF_MEMORY),   CASE(ipc, MAP_FAILED),
    CASE(external, OUT_OF_MEMORY),   CASE(external_buffer, MAP_FAILED), CASE(graph, OUT_OF_MEMORY),
    CASE(alloc_node, OUT_OF_MEMORY), CASE(executable, OUT_OF_MEMORY),   CASE(capture, OUT_OF_MEMORY),
    CASE(captured, OUT_OF_MEMORY),   CASE(stream, OUT_OF_MEMORY),       CASE(event, OUT_OF_MEMORY),
    CASE(module, OUT_OF_MEMORY),     CASE(library, OUT_OF_MEMORY),      CASE(context, OUT_OF_MEMORY),
    CASE(green, OUT_OF_MEMORY),
};

/* Makes a case with its first, second, ... request refused, until none is left to refuse. Returns how many were. */
static int sweep(size_t which) {
  char line[160];
  for (int request = 1; request <= MOST_REQUESTS; request++) {
    struct sums before = sums(), after;
    CUresult result;
    bool met, right;
    state.refused = request;
    result = cases[which].run();
    met = state.asked >= request; /* the call came that far */
    right = met ? result == CUDA_ERROR_OUT_OF_MEMORY || result == cases[which].refused : !result;
    snprintf(line, sizeof line, "%s, request %d%s: the driver says %d", cases[which].name, request,
             met ? " refused" : ", none refused", (int)result);
    expect(right, line);
    after = sums();
    for (int kind = 0; kind < SIMGPU_KINDS; kind++) {
      snprintf(line, sizeof line,
               "%s, request %d: kind %d has lost %" PRIu64 " bytes, %" PRIu64 " are held in %" PRIu64,
               cases[which].name, request, kind, after.used[kind] - before.used[kind],
               after.requested[kind] - before.requested[kind], after.live[kind] - before.live[kind]);
      expect(after.used[kind] == before.used[kind] && after.requested[kind] == before.requested[kind] &&
                 after.live[kind] == before.live[kind],
             line);
    }
    if (!met)
      return request - 1;
  }
  expect(false, "a call with more requests than were foreseen");
  return MOST_REQUESTS;
}

int main(void) {
  int refused = 0;
  setvbuf(stderr, NULL, _IONBF, 0);
  SURE(cuInit, 0);
  SURE(cuDevicePrimaryCtxRetain, &state.primary, 0);
  SURE(cuCtxSetCurrent, state.primary);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int requests = sweep(i);
    char line[96];
    snprintf(line, sizeof line, "%s asked the host for nothing", cases[i].name);
    expect(requests > 0, line);
    refused += requests;
  }
  SURE(cuDevicePrimaryCtxRelease, 0);
  expect(simgpu_used(0) == 0 && simgpu_live(0) == 0, "something is left in the end");
  printf("%zu calls, %d requests refused, %d disagreements\n", sizeof cases / sizeof *cases, refused, state.wrong);
  return state.wrong != 0;
}
