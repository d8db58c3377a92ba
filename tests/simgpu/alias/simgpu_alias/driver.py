"""The simulated driver, asked directly: for what Paddle does not say of a custom device. Sizes in bytes."""

import ctypes

__all__ = ["free_and_total", "peak", "total", "used"]


class _Library:
    handle = None


def _library():
    if _Library.handle is None:
        library = ctypes.CDLL("libcuda.so.1")
        library.simgpu_used.restype = library.simgpu_peak.restype = ctypes.c_uint64
        _Library.handle = library
    return _Library.handle


def _check(result, what):
    if result != 0:
        raise RuntimeError(f"{what} gave CUDA error {result}")


def used(device):
    return _library().simgpu_used(device)


def peak(device, reset=False):
    return _library().simgpu_peak(device, int(reset))


def total(device):
    size = ctypes.c_size_t()
    _check(_library().cuDeviceTotalMem_v2(ctypes.byref(size), device), "cuDeviceTotalMem")
    return size.value


def free_and_total(device):
    """As cudaMemGetInfo has it."""
    library, context = _library(), ctypes.c_void_p()
    left, size = ctypes.c_size_t(), ctypes.c_size_t()
    _check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    try:
        _check(library.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        result = library.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(size))
        library.cuCtxPopCurrent_v2(None)
        _check(result, "cuMemGetInfo")
    finally:
        library.cuDevicePrimaryCtxRelease_v2(device)
    return left.value, size.value
