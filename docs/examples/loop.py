"""A training loop written by hand, in any framework, that obeys control.json: no library is linked, no adapter needed.

    LD_PRELOAD=libbsguard.so python loop.py

bsguard sees the driver refuse the same request again after the loop has freed its caches, doubles `accumulation_steps` and
says in control.json that it inferred that. Without the preload the loop runs as it always did.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

BATCH, STEPS, BYTES_PER_SAMPLE = 64, 5, 1 << 20


def accumulation_steps():
    """Into how many pieces a batch is to be cut now."""
    for control in Path(os.environ.get("BSGUARD_DIR", "bsguard")).glob(f"*-{os.getpid()}/control.json"):
        return json.loads(control.read_text())["accumulation_steps"]
    return 1


class Device:
    """Stands for your framework: a step allocates activations, and an allocator keeps a cache."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        if self.driver.cuInit(0) or self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
            sys.exit("no CUDA device")
        self.driver.cuCtxSetCurrent(context)
        self.cache = []

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        if self.driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
            raise MemoryError(f"out of memory: {size} bytes")
        return pointer

    def empty_cache(self):
        while self.cache:
            self.driver.cuMemFree_v2(self.cache.pop())

    def run(self, samples):
        """Forward and backward of so many samples; your gradients would be summed."""
        try:
            self.cache.append(self.allocate(samples * BYTES_PER_SAMPLE // 64))
            activations = self.allocate(samples * BYTES_PER_SAMPLE)
        except MemoryError:
            self.empty_cache()
            activations = self.allocate(samples * BYTES_PER_SAMPLE)  # now or never
        self.driver.cuMemFree_v2(activations)


device = Device()
for step in range(STEPS):
    while True:
        pieces = accumulation_steps()
        samples = -(-BATCH // pieces)
        try:
            for start in range(0, BATCH, samples):
                device.run(min(samples, BATCH - start))
            break
        except MemoryError:
            device.empty_cache()
            if accumulation_steps() == pieces or samples == 1:  # nobody halves, or nothing is left to halve
                raise
    print(f"step {step}: {BATCH} samples, {samples} at a time")
