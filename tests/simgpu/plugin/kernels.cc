// kernels.cc - the operators for which Paddle does not fall back to a CPU kernel as it should: contiguous and
// strided_copy (needed with FLAGS_use_stride_kernel, on by default) and, from Paddle 3, fill (the backward of slices)
// have no fall-back; full has one that writes to device memory straight from the CPU when Paddle itself sets a tensor
// to a constant. These reach device memory through the driver alone, so they work where it is unreadable to the
// process.
#include <cstring>
#include <memory>
#include <vector>

#include "driver.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/kernel_registry.h"

namespace simgpu {

using Buffer = std::unique_ptr<char[]>;

static Buffer Fetch(int device, const void *from, int64_t bytes) {
  Buffer buffer(new char[bytes]);
  PD_CHECK(Use(device) == kSuccess &&
               driver.to_host(buffer.get(), reinterpret_cast<uintptr_t>(from), bytes) == kSuccess,
           "simgpu: cuMemcpyDtoH of ", bytes, " bytes failed");
  return buffer;
}

static void Store(int device, void *to, const char *from, int64_t bytes) {
  PD_CHECK(Use(device) == kSuccess && driver.to_device(reinterpret_cast<uintptr_t>(to), from, bytes) == kSuccess,
           "simgpu: cuMemcpyHtoD of ", bytes, " bytes failed");
}

// A view of memory: dimensions and strides in elements.
struct View {
  std::vector<int64_t> dims, strides;

  View(const phi::DDim &d, const phi::DDim &s) {
    for (int i = 0; i < d.size(); i++) {
      dims.push_back(d[i]);
      strides.push_back(s[i]);
    }
  }

  // Elements from the first to the last that the view touches.
  int64_t Span() const {
    int64_t span = 1;
    for (size_t i = 0; i < dims.size(); i++) {
      if (dims[i] == 0)
        return 0;
      span += (dims[i] - 1) * strides[i];
    }
    return span;
  }

  // Calls visit(offset in the view's memory, linear index) for the start of each innermost row, in order.
  template <typename Visit> void Rows(Visit visit) const {
    const int outer = static_cast<int>(dims.size()) - 1;
    const int64_t row = outer >= 0 ? dims[outer] : 1;
    std::vector<int64_t> at(dims.size() + 1, 0);
    int64_t offset = 0, linear = 0;
    for (;;) {
      visit(offset, linear);
      linear += row;
      int i = outer - 1;
      for (; i >= 0; i--) {
        offset += strides[i];
        if (++at[i] < dims[i])
          break;
        offset -= strides[i] * dims[i];
        at[i] = 0;
      }
      if (i < 0)
        return;
    }
  }

  int64_t RowLength() const { return dims.empty() ? 1 : dims.back(); }
  int64_t RowStride() const { return dims.empty() ? 1 : strides.back(); }
};

// The view's elements one after another.
template <typename T> void Gather(const View &view, const char *memory, char *out) {
  const int64_t length = view.RowLength(), stride = view.RowStride();
  view.Rows([&](int64_t offset, int64_t linear) {
    for (int64_t j = 0; j < length; j++)
      std::memcpy(out + (linear + j) * sizeof(T), memory + (offset + j * stride) * sizeof(T), sizeof(T));
  });
}

template <typename T> void Scatter(const View &view, const char *in, char *memory) {
  const int64_t length = view.RowLength(), stride = view.RowStride();
  view.Rows([&](int64_t offset, int64_t linear) {
    for (int64_t j = 0; j < length; j++)
      std::memcpy(memory + (offset + j * stride) * sizeof(T), in + (linear + j) * sizeof(T), sizeof(T));
  });
}

template <typename T, typename Context>
void Contiguous(const Context &context, const phi::DenseTensor &input, phi::DenseTensor *out) {
  const View view(input.dims(), input.strides());
  const int device = input.place().GetDeviceId();
  const int64_t count = input.numel();
  phi::DenseTensorMeta meta = input.meta();
  meta.strides = phi::DenseTensorMeta::calc_strides(input.dims());
  meta.offset = 0;
  out->set_meta(meta);
  T *to = context.template Alloc<T>(out);
  if (count == 0)
    return;
  Buffer memory = Fetch(device, input.data<T>(), view.Span() * sizeof(T));
  Buffer packed(new char[count * sizeof(T)]);
  Gather<T>(view, memory.get(), packed.get());
  Store(device, to, packed.get(), count * sizeof(T));
}

template <typename T, typename Context>
void StridedCopy(const Context &, const phi::DenseTensor &input, const std::vector<int64_t> &dims,
                 const std::vector<int64_t> &strides, int64_t offset, phi::DenseTensor *out) {
  const View from(input.dims(), input.strides());
  const int device = input.place().GetDeviceId();
  const int64_t count = input.numel();
  phi::DenseTensorMeta meta = input.meta();
  meta.dims = phi::make_ddim(dims);
  meta.strides = phi::make_ddim(strides);
  meta.offset = offset;
  out->set_meta(meta);
  if (count == 0)
    return;
  const View to(meta.dims, meta.strides);
  T *target = out->data<T>();
  Buffer source = Fetch(device, input.data<T>(), from.Span() * sizeof(T));
  Buffer packed(new char[count * sizeof(T)]);
  Gather<T>(from, source.get(), packed.get());
  // What lies between the elements of the target stays as it is.
  Buffer result = Fetch(device, target, to.Span() * sizeof(T));
  Scatter<T>(to, packed.get(), result.get());
  Store(device, target, result.get(), to.Span() * sizeof(T));
}

template <typename T, typename Context>
void SetAll(const Context &context, const phi::Scalar &value, phi::DenseTensor *out) {
  T *to = context.template Alloc<T>(out);
  const int64_t count = out->numel();
  if (count == 0)
    return;
  const T element = value.to<T>();
  Buffer filled(new char[count * sizeof(T)]);
  for (int64_t i = 0; i < count; i++)
    std::memcpy(filled.get() + i * sizeof(T), &element, sizeof(T));
  Store(out->place().GetDeviceId(), to, filled.get(), count * sizeof(T));
}

template <typename T, typename Context>
void Full(const Context &context, const phi::IntArray &shape, const phi::Scalar &value, phi::DataType,
          phi::DenseTensor *out) {
  out->Resize(phi::make_ddim(shape.GetData()));
  SetAll<T>(context, value, out);
}

#if SIMGPU_PADDLE_MAJOR >= 3
template <typename T, typename Context>
void Fill(const Context &context, const phi::DenseTensor &, const phi::Scalar &value, phi::DenseTensor *out) {
  SetAll<T>(context, value, out);
}
#endif

} // namespace simgpu

#define SIMGPU_TYPES                                                                                                   \
  bool, uint8_t, int8_t, int16_t, int32_t, int64_t, float, double, phi::dtype::float16, phi::dtype::bfloat16,          \
      phi::dtype::complex<float>, phi::dtype::complex<double>
#define SIMGPU_REGISTER(name, function, ...)                                                                           \
  PD_REGISTER_PLUGIN_KERNEL(name, gpu, ALL_LAYOUT, function, __VA_ARGS__) {}

SIMGPU_REGISTER(contiguous, simgpu::Contiguous, SIMGPU_TYPES)
SIMGPU_REGISTER(strided_copy, simgpu::StridedCopy, SIMGPU_TYPES)
SIMGPU_REGISTER(full, simgpu::Full, SIMGPU_TYPES)
#if SIMGPU_PADDLE_MAJOR >= 3
SIMGPU_REGISTER(fill, simgpu::Fill, SIMGPU_TYPES)
#endif
