"""For the tests of the simulated driver: the driver as ctypes sees it, and a fresh process for each test.

The driver reads its options once and counts for the life of the process, so a test that is decorated with `fresh` runs in a
process of its own, with the SIMGPU_* options named there.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BSG_BUILD", REPO / "build")).resolve()
DRIVER = BUILD / "simgpu" / "lib" / "libcuda.so.1"

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND, CONTEXT_IS_DESTROYED = 101, 201, 400, 500, 709
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713
KIB, MIB = 1 << 10, 1 << 20


class Kind(enum.IntEnum):
    """enum simgpu_kind of driver/simgpu.h."""

    PLAIN = 0
    MANAGED = 1
    POOL = 2
    GRAPH = 3
    VMM = 4
    ARRAY = 5
    CONTEXT = 6
    MODULE = 7
    QUEUE = 8
    PINNED = 9
    MAPPED = 10


class Driver:
    """The driver with the primary context of device 0 current. Anything else is reached through `lib`."""

    def __init__(self, ready=True):
        self.lib = ctypes.CDLL(str(DRIVER))
        for name in ("used", "peak", "live", "calls", "failures", "used_by", "requested_by", "live_by", "reserved"):
            getattr(self.lib, "simgpu_" + name).restype = ctypes.c_uint64
        self.lib.simgpu_set_capacity.argtypes = [ctypes.c_int, ctypes.c_uint64]
        self.lib.simgpu_fail_at.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        self.lib.simgpu_fail_every.argtypes = self.lib.simgpu_fail_size.argtypes = [ctypes.c_uint64]
        self.lib.cuMemFree_v2.argtypes = [ctypes.c_uint64]
        if ready:
            assert self.lib.cuInit(0) == SUCCESS
            self.use(0)

    def use(self, device):
        """Makes a device's primary context current, and returns it."""
        context = ctypes.c_void_p()
        assert self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == SUCCESS
        assert self.lib.cuCtxSetCurrent(context) == SUCCESS
        return context

    def try_alloc(self, size):
        """(result, address) of cuMemAlloc_v2."""
        address = ctypes.c_uint64()
        return self.lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address.value

    def alloc(self, size):
        result, address = self.try_alloc(size)
        assert result == SUCCESS, f"cuMemAlloc of {size} bytes gave {result}"
        return address

    def free(self, address):
        return self.lib.cuMemFree_v2(address)

    def info(self):
        """(free, total) bytes."""
        left, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self.lib.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)) == SUCCESS
        return left.value, total.value

    def used(self, device=0):
        return self.lib.simgpu_used(device)

    def used_by(self, kind, device=0):
        return self.lib.simgpu_used_by(device, int(kind))

    def requested_by(self, kind, device=0):
        return self.lib.simgpu_requested_by(device, int(kind))

    def live_by(self, kind, device=0):
        return self.lib.simgpu_live_by(device, int(kind))

    def write(self, address, data):
        return self.lib.cuMemcpyHtoD_v2(ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address, size):
        """Bytes of the device; None when the copy was refused."""
        buffer = ctypes.create_string_buffer(size)
        result = self.lib.cuMemcpyDtoH_v2(buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw if result == SUCCESS else None


def fresh(function=None, **options):
    """Runs a test in a process of its own, with SIMGPU_<NAME>=value for each option."""
    if function is None:
        return functools.partial(fresh, **options)

    def wrapper():
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMGPU_")}
        environment.update({"SIMGPU_" + name.upper(): str(value) for name, value in options.items()})
        command = [sys.executable, __file__, function.__code__.co_filename, function.__name__]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        text = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, f"{function.__name__} in its own process ended with {done.returncode}\n{text}"

    # functools.wraps would also show pytest the signature of the function, whose argument is no fixture.
    wrapper.__name__, wrapper.__doc__, wrapper.__module__ = function.__name__, function.__doc__, function.__module__
    wrapper.body = function
    return wrapper


def _main(path, name):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, name).body(Driver())


if __name__ == "__main__":
    sys.modules["simgpu_support"] = sys.modules["__main__"]
    _main(sys.argv[1], sys.argv[2])
