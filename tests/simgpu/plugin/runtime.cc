// runtime.cc - Paddle's custom-device interface (device_ext.h) for the device type "gpu": memory and copies come from
// the driver, streams and events are always idle, every operator but those of kernels.cc falls back to its CPU kernel.
// Collectives are in collectives.cc.
//
// Built once for each Paddle version: the layout of C_DeviceInterface differs.
//
// Out of memory is answered with success and a null pointer: only then does Paddle's allocator free its idle chunks,
// ask again (four times in all), and raise the MemoryError of a real GPU. An error status becomes a bare OSError.
//
// Paddle puts no retry allocator in front of a custom device, as it does for a real GPU. SIMGPU_RETRY_MS imitates it:
// after the fourth refusal in a row of the same size, wait so many milliseconds and ask four times more.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "collectives.h"
#include "driver.h"
#include "paddle/phi/backends/device_ext.h"

using namespace simgpu;

namespace {

constexpr int kAttempts = 4; // of Paddle's allocators for one request

C_Status Status(Result result) {
  return result == kSuccess ? C_SUCCESS : C_ERROR;
}

Address ToAddress(const void *pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

// ---- devices ----
C_Status Initialize() {
  return Bind() ? Status(driver.init(0)) : C_ERROR;
}
C_Status Finalize() {
  return C_SUCCESS;
}
C_Status SetDevice(const C_Device device) {
  return Status(Use(device->id));
}
C_Status DeinitDevice(const C_Device) {
  return C_SUCCESS;
}

C_Status GetDevice(const C_Device device) {
  device->id = Current();
  return C_SUCCESS;
}

C_Status SyncDevice(const C_Device device) {
  Result result = Use(device->id);
  return Status(result == kSuccess ? driver.synchronize() : result);
}

C_Status GetDeviceCount(size_t *count) {
  *count = DeviceCount();
  return C_SUCCESS;
}

C_Status GetDeviceList(size_t *devices) {
  for (int i = 0; i < DeviceCount(); i++)
    devices[i] = i;
  return C_SUCCESS;
}

C_Status MemoryStats(const C_Device device, size_t *total, size_t *left) {
  Result result = Use(device->id);
  return Status(result == kSuccess ? driver.info(left, total) : result);
}

C_Status MinChunkSize(const C_Device, size_t *bytes) {
  *bytes = 256; // what Paddle's allocator for a real GPU aligns to
  return C_SUCCESS;
}

// ---- streams and events: nothing is ever pending ----
C_Status CreateStream(const C_Device, C_Stream *stream) {
  *stream = reinterpret_cast<C_Stream>(std::malloc(8));
  return *stream ? C_SUCCESS : C_ERROR;
}
C_Status DestroyStream(const C_Device, C_Stream stream) {
  std::free(stream);
  return C_SUCCESS;
}
C_Status QueryStream(const C_Device, C_Stream) {
  return C_SUCCESS;
}
C_Status SyncStream(const C_Device, C_Stream) {
  return C_SUCCESS;
}
C_Status StreamWaitEvent(const C_Device, C_Stream, C_Event) {
  return C_SUCCESS;
}
C_Status AddCallback(const C_Device device, C_Stream stream, C_Callback callback, void *user_data) {
  C_Status status = C_SUCCESS;
  callback(device, stream, user_data, &status);
  return status;
}
C_Status CreateEvent(const C_Device, C_Event *event) {
  *event = reinterpret_cast<C_Event>(std::malloc(8));
  return *event ? C_SUCCESS : C_ERROR;
}
C_Status DestroyEvent(const C_Device, C_Event event) {
  std::free(event);
  return C_SUCCESS;
}
C_Status RecordEvent(const C_Device, C_Stream, C_Event) {
  return C_SUCCESS;
}
C_Status QueryEvent(const C_Device, C_Event) {
  return C_SUCCESS;
}
C_Status SyncEvent(const C_Device, C_Event) {
  return C_SUCCESS;
}

// ---- memory ----
long RetryMilliseconds() {
  static const long milliseconds = [] {
    const char *text = std::getenv("SIMGPU_RETRY_MS");
    return text ? std::strtol(text, nullptr, 10) : 0L;
  }();
  return milliseconds;
}

// The wait and the further attempts of a retry allocator, once kAttempts requests of one size were refused in a row.
Result Retry(Result result, size_t bytes, Address *address) {
  static thread_local size_t last_bytes = 0;
  static thread_local int refused = 0;
  if (result != kOutOfMemory || RetryMilliseconds() <= 0) {
    refused = 0;
    return result;
  }
  refused = bytes == last_bytes ? refused + 1 : 1;
  last_bytes = bytes;
  if (refused < kAttempts)
    return result;
  refused = 0;
  usleep(static_cast<useconds_t>(RetryMilliseconds()) * 1000);
  for (int i = 0; i < kAttempts && result == kOutOfMemory; i++)
    result = driver.allocate(address, bytes);
  return result;
}

C_Status Allocate(const C_Device device, void **out, size_t bytes) {
  Address address = 0;
  *out = nullptr;
  Result result = Use(device->id);
  if (result != kSuccess)
    return C_ERROR;
  result = Retry(driver.allocate(&address, bytes), bytes, &address);
  if (result == kSuccess)
    *out = reinterpret_cast<void *>(static_cast<uintptr_t>(address));
  return result == kOutOfMemory ? C_SUCCESS : Status(result);
}

C_Status Free(const C_Device device, void *pointer, size_t) {
  Result result = Use(device->id);
  return Status(result == kSuccess ? driver.release(ToAddress(pointer)) : result);
}

C_Status HostAllocate(const C_Device device, void **out, size_t bytes) {
  Result result = Use(device->id);
  return Status(result == kSuccess ? driver.pin(out, bytes, 0) : result);
}

C_Status HostFree(const C_Device device, void *pointer, size_t) {
  Result result = Use(device->id);
  return Status(result == kSuccess ? driver.unpin(pointer) : result);
}

C_Status Fill(const C_Device device, void *to, unsigned char value, size_t bytes) {
  Result result = Use(device->id);
  return Status(result == kSuccess ? driver.fill(ToAddress(to), value, bytes) : result);
}

C_Status ToDevice(const C_Device device, void *to, const void *from, size_t bytes) {
  Result result = Use(device->id);
  return Status(result == kSuccess ? driver.to_device(ToAddress(to), from, bytes) : result);
}

C_Status ToHost(const C_Device device, void *to, const void *from, size_t bytes) {
  Result result = Use(device->id);
  return Status(result == kSuccess ? driver.to_host(to, ToAddress(from), bytes) : result);
}

C_Status OnDevice(const C_Device device, void *to, const void *from, size_t bytes) {
  Result result = Use(device->id);
  return Status(result == kSuccess ? driver.on_device(ToAddress(to), ToAddress(from), bytes) : result);
}

C_Status BetweenDevices(const C_Device to_device, const C_Device, void *to, const void *from, size_t bytes) {
  return OnDevice(to_device, to, from, bytes);
}
C_Status ToDeviceAsync(const C_Device device, C_Stream, void *to, const void *from, size_t bytes) {
  return ToDevice(device, to, from, bytes);
}
C_Status ToHostAsync(const C_Device device, C_Stream, void *to, const void *from, size_t bytes) {
  return ToHost(device, to, from, bytes);
}
C_Status OnDeviceAsync(const C_Device device, C_Stream, void *to, const void *from, size_t bytes) {
  return OnDevice(device, to, from, bytes);
}
C_Status BetweenDevicesAsync(const C_Device to_device, const C_Device, C_Stream, void *to, const void *from,
                             size_t bytes) {
  return OnDevice(to_device, to, from, bytes);
}

// ---- y = alpha x + beta y, which Paddle asks of the device itself when it sums gradients ----
template <typename T>
C_Status ScaledSum(const C_Device device, size_t count, float alpha, void *x, float beta, void *y) {
  std::unique_ptr<T[]> from(new T[count]), to(new T[count]);
  if (ToHost(device, from.get(), x, count * sizeof(T)) != C_SUCCESS ||
      ToHost(device, to.get(), y, count * sizeof(T)) != C_SUCCESS)
    return C_ERROR;
  for (size_t i = 0; i < count; i++)
    to[i] = static_cast<T>(alpha) * from[i] + static_cast<T>(beta) * to[i];
  return ToDevice(device, y, to.get(), count * sizeof(T));
}

C_Status BlasAxpby(const C_Device device, C_Stream, C_DataType type, size_t count, float alpha, void *x, float beta,
                   void *y) {
  if (type == FLOAT32)
    return ScaledSum<float>(device, count, alpha, x, beta, y);
  if (type == FLOAT64)
    return ScaledSum<double>(device, count, alpha, x, beta, y);
  return C_ERROR;
}

// ---- what the device says of itself; Paddle 3 passes the device, Paddle 2 does not ----
C_Status DriverVersion(size_t *version) {
  int value = 0;
  Result result = driver.version(&value);
  *version = value;
  return Status(result);
}

#if SIMGPU_PADDLE_MAJOR >= 3
C_Status GetVersion(const C_Device, size_t *version) {
  return DriverVersion(version);
}
template <size_t value> C_Status Say(const C_Device, size_t *out) {
  *out = value;
  return C_SUCCESS;
}
template <bool value> C_Status SayIf(const C_Device, bool *out) {
  *out = value;
  return C_SUCCESS;
}
#else
C_Status GetVersion(size_t *version) {
  return DriverVersion(version);
}
template <size_t value> C_Status Say(size_t *out) {
  *out = value;
  return C_SUCCESS;
}
#endif

} // namespace

extern "C" __attribute__((visibility("default"))) void InitPlugin(CustomRuntimeParams *params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  params->device_type = strdup("gpu");
  params->sub_device_type = strdup("V0");
  C_DeviceInterface *i = params->interface;
  std::memset(i, 0, sizeof *i);
  i->size = sizeof *i;
  i->initialize = Initialize;
  i->finalize = Finalize;
  i->init_device = SetDevice;
  i->set_device = SetDevice;
  i->get_device = GetDevice;
  i->deinit_device = DeinitDevice;
  i->synchronize_device = SyncDevice;
  i->get_device_count = GetDeviceCount;
  i->get_device_list = GetDeviceList;
  i->device_memory_stats = MemoryStats;
  i->device_min_chunk_size = MinChunkSize;

  i->create_stream = CreateStream;
  i->destroy_stream = DestroyStream;
  i->query_stream = QueryStream;
  i->synchronize_stream = SyncStream;
  i->stream_wait_event = StreamWaitEvent;
  i->stream_add_callback = AddCallback;
  i->create_event = CreateEvent;
  i->destroy_event = DestroyEvent;
  i->record_event = RecordEvent;
  i->query_event = QueryEvent;
  i->synchronize_event = SyncEvent;

  i->device_memory_allocate = Allocate;
  i->device_memory_deallocate = Free;
  i->device_memory_set = Fill;
  i->host_memory_allocate = HostAllocate;
  i->host_memory_deallocate = HostFree;
  i->memory_copy_h2d = ToDevice;
  i->memory_copy_d2h = ToHost;
  i->memory_copy_d2d = OnDevice;
  i->memory_copy_p2p = BetweenDevices;
  i->async_memory_copy_h2d = ToDeviceAsync;
  i->async_memory_copy_d2h = ToHostAsync;
  i->async_memory_copy_d2d = OnDeviceAsync;
  i->async_memory_copy_p2p = BetweenDevicesAsync;
  i->blas_axpby = BlasAxpby;
  OfferCollectives(i);

  i->get_compute_capability = Say<80>;
  i->get_driver_version = GetVersion;
  i->get_runtime_version = GetVersion;
#if SIMGPU_PADDLE_MAJOR >= 3
  i->get_multi_process = Say<16>;
  i->get_max_threads_per_mp = Say<2048>;
  i->get_max_threads_per_block = Say<1024>;
  i->is_float16_supported = SayIf<true>;
  i->is_bfloat16_supported = SayIf<true>;
  i->is_dnn_supported = SayIf<false>;
#endif
}
