// driver.cc - binding the driver, and the current device of each thread. See driver.h.
#include "driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace simgpu {

Driver driver;

namespace {

constexpr int kMaxDevices = 16;
// What the plug-in was written against: cuGetProcAddress answers with the newest form up to this version.
constexpr int kCudaVersion = 12000;

struct {
  std::mutex mutex;
  std::atomic<void *> context[kMaxDevices];
  int count;
} state;

thread_local int current = 0;

bool Complain(const char *what, const char *detail) {
  std::fprintf(stderr, "simgpu: %s%s%s\n", what, detail ? ": " : "", detail ? detail : "");
  return false;
}

template <typename F> void Set(F *field, void *function) {
  *field = reinterpret_cast<F>(function);
}

bool BindBySymbol(void *handle) {
#define DRIVER(field, symbol, bare)                                                                                    \
  Set(&driver.field, dlsym(handle, #symbol));                                                                          \
  if (!driver.field)                                                                                                   \
    return Complain("libcuda.so.1 does not export " #symbol, nullptr);
#include "driver.def"
#undef DRIVER
  return true;
}

bool BindByLookup(void *handle) {
  using Lookup = Result (*)(const char *name, void **out, int version, unsigned long long flags, int *status);
  Lookup first = nullptr, lookup = nullptr;
  void *found = nullptr;
  Set(&first, dlsym(handle, "cuGetProcAddress_v2"));
  if (!first)
    return Complain("libcuda.so.1 does not export cuGetProcAddress_v2", nullptr);
  // libcudart asks for the look-up itself, and uses the answer from then on.
  if (first("cuGetProcAddress", &found, kCudaVersion, 0, nullptr) != kSuccess || !found)
    return Complain("cuGetProcAddress does not find itself", nullptr);
  Set(&lookup, found);
#define DRIVER(field, symbol, bare)                                                                                    \
  found = nullptr;                                                                                                     \
  if (lookup(#bare, &found, kCudaVersion, 0, nullptr) != kSuccess || !found)                                           \
    return Complain("cuGetProcAddress does not find " #bare, nullptr);                                                 \
  Set(&driver.field, found);
#include "driver.def"
#undef DRIVER
  return true;
}

bool BindByLinker() {
  void *handle = dlopen("libsimgpu-linked.so", RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return Complain("SIMGPU_BIND=linked", dlerror());
  auto linked = reinterpret_cast<void *(*)(const char *)>(dlsym(handle, "simgpu_linked"));
  if (!linked)
    return Complain("SIMGPU_BIND=linked", dlerror());
#define DRIVER(field, symbol, bare) Set(&driver.field, linked(#symbol));
#include "driver.def"
#undef DRIVER
  return true;
}

} // namespace

bool Bind() {
  const char *way = std::getenv("SIMGPU_BIND");
  if (way && std::strcmp(way, "linked") == 0)
    return BindByLinker();
  if (way && *way && std::strcmp(way, "dlsym") != 0 && std::strcmp(way, "getproc") != 0)
    Complain("SIMGPU_BIND is not one of getproc, dlsym, linked; getproc is used", way);
  void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return Complain("no driver", dlerror());
  return way && std::strcmp(way, "dlsym") == 0 ? BindBySymbol(handle) : BindByLookup(handle);
}

Result Use(int device) {
  if (device < 0 || device >= DeviceCount())
    return 101; // CUDA_ERROR_INVALID_DEVICE
  void *context = state.context[device].load(std::memory_order_acquire);
  if (!context) {
    std::lock_guard<std::mutex> guard(state.mutex);
    context = state.context[device].load(std::memory_order_relaxed);
    if (!context) {
      Result result = driver.retain(&context, device);
      if (result != kSuccess)
        return result;
      state.context[device].store(context, std::memory_order_release);
    }
  }
  current = device;
  return driver.set_current(context);
}

int Current() {
  return current;
}

int DeviceCount() {
  if (state.count == 0) {
    int count = 0;
    if (driver.device_count(&count) == kSuccess)
      state.count = count < kMaxDevices ? count : kMaxDevices;
  }
  return state.count;
}

} // namespace simgpu
