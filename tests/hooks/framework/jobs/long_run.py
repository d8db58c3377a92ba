"""Many steps of a small network whose outputs are large: long_run.py [--keep]

Prints a JSON line with what one step adds: bytes on the device, bytes of the process on the host. Each is the least of
several stretches of the run: what a step leaves behind shows in every stretch, what an allocator of the host does once in a
while (another arena, a page that is touched late) does not.
"""

import argparse
import ctypes
import gc
import json

import numpy as np
import paddle
import paddle.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--stretches", type=int, default=4)
parser.add_argument("--steps", type=int, default=30, help="of one stretch")
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
points = [measure()]
for _ in range(options.stretches):
    for _ in range(options.steps):
        step()
    points.append(measure())
added = [[(b - a) / options.steps for a, b in zip(before, after)] for before, after in zip(points, points[1:])]
print(json.dumps([min(each) for each in zip(*added)]))
