"""Many steps of a small network whose outputs are large: long_run.py [--keep]

Prints a JSON line with what one step adds, measured between two points of the run: bytes on the device, bytes of the
process on the host.
"""

import argparse
import ctypes
import gc
import json

import numpy as np
import paddle
import paddle.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--keep", action="store_true", help="keep the loss of every step")
options = parser.parse_args()

paddle.set_device("gpu")
paddle.seed(7)
widths = [1, 16, 16, 16, 8]
pairs = zip(widths, widths[1:])
net = nn.Sequential(*[layer for a, b in pairs for layer in (nn.Conv2D(a, b, 3, padding=1), nn.ReLU())])
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
driver = ctypes.CDLL("libcuda.so.1")
driver.simgpu_used.restype = ctypes.c_uint64
random = np.random.RandomState(3)
kept = []


def step():
    images = paddle.to_tensor(random.rand(8, 1, 32, 32).astype("float32"))
    loss = (net(images) - images).abs().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    if options.keep:
        kept.append(loss)


def measure():
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * 4096
    return driver.simgpu_used(0), resident


for _ in range(20):
    step()
before = measure()
for _ in range(options.steps):
    step()
after = measure()
print(json.dumps([(b - a) / options.steps for a, b in zip(before, after)]))
