"""Lets bsguard take the CPU for its device, for benchmarks that want Paddle's own computing and no simulated device in the
way: the adapter is shown host memory, by Paddle's own count, as that of a device of a given size.

A driver is loaded and one small allocation is made with it, so that the run has its folder, its control.json and its
request.json. Nothing of the adapter is replaced but the questions that it asks of the device. Nothing here runs out of memory.
"""

import ctypes
import sys


def take(paddle, limit):
    """limit: bytes of the device. Without the preload nothing happens. Raises RuntimeError where there is no driver."""
    if "bsguard_paddle.runtime" not in sys.modules:
        return
    _allocate()
    core = paddle.base.core
    core.device_memory_stat_current_value = core.host_memory_stat_current_value
    from bsguard_paddle import native, peaks, runtime

    peaks._original_peak = core.host_memory_stat_peak_value
    peaks._original_reset = core.host_memory_stat_reset_peak_value
    for name, module in list(sys.modules.items()):
        if name.startswith("bsguard_paddle.") and hasattr(module, "device_of"):
            module.device_of = lambda tensor: 0

    def memory(device):
        live = core.host_memory_stat_current_value("Allocated", 0)
        top = core.host_memory_stat_peak_value("Allocated", 0)
        return native.Memory(ctypes.sizeof(native.Memory), device, limit, max(0, limit - live), live, top, top)

    runtime.runtime.library.memory = memory


def _allocate():
    """One megabyte, kept to the end of the process."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    for code in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)),
    ):
        if code:
            raise RuntimeError("the driver answered %d" % code)
