// driver.h - the CUDA driver as the plug-in sees it: a table of functions, bound in one of the three ways that programs
// use. Knows nothing of Paddle.
#pragma once
#include <cstddef>
#include <cstdint>

namespace simgpu {

using Result = int; // CUresult
using Address = unsigned long long;
constexpr Result kSuccess = 0, kOutOfMemory = 2;

// One function pointer for each line of driver.def.
struct Driver {
  Result (*init)(unsigned flags);
  Result (*device_count)(int *count);
  Result (*retain)(void **context, int device);
  Result (*set_current)(void *context);
  Result (*synchronize)();
  Result (*allocate)(Address *out, size_t bytes);
  Result (*release)(Address address);
  Result (*info)(size_t *left, size_t *total);
  Result (*to_device)(Address to, const void *from, size_t bytes);
  Result (*to_host)(void *to, Address from, size_t bytes);
  Result (*on_device)(Address to, Address from, size_t bytes);
  Result (*fill)(Address to, unsigned char value, size_t bytes);
  Result (*pin)(void **out, size_t bytes, unsigned flags);
  Result (*unpin)(void *pointer);
  Result (*version)(int *version);
};

extern Driver driver;

// Fills the table. SIMGPU_BIND says how: getproc (default; dlopen, then everything by cuGetProcAddress_v2, as libcudart
// does), dlsym (single names by handle, as cuDNN does), linked (plain symbols, as a program linked with -lcuda). False,
// after one line on stderr, when the driver is not there.
bool Bind();

// Makes a device's primary context current on this thread, retaining it the first time.
Result Use(int device);

// The device that this thread used last.
int Current();

int DeviceCount();

} // namespace simgpu
