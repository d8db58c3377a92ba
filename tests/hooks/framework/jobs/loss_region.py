"""Losses written with tensor operations: loss_region.py KIND [STEP_BYTES]

With STEP_BYTES, one process runs the same short training at many capacities of the simulated device, each with a network of
its own, from the peak down to what the loss needs; for each, how far the weights are from those of a run with enough memory
(null: it died, as the job would have without bsguard). Without it, one run at the device's own size, and its weights. Prints
one line of JSON.
"""

import ctypes
import gc
import json
import sys

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

driver = ctypes.CDLL("libcuda.so.1")
driver.simgpu_used.restype = driver.simgpu_peak.restype = ctypes.c_uint64
driver.simgpu_set_capacity.argtypes = [ctypes.c_int, ctypes.c_uint64]
ENOUGH = 256 << 20

paddle.set_device("gpu")
paddle.set_default_dtype("float64")
kind, step_bytes = sys.argv[1], int((sys.argv[2:] or [0])[0])
BATCH, SIZE, WIDTH = 12, 24, 24


class Segmenter(nn.Layer):
    def __init__(self):
        super().__init__()
        layers = []
        for inputs in (3, WIDTH, WIDTH, WIDTH):
            layers += [nn.Conv2D(inputs, WIDTH, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2D(WIDTH, 4, 1))

    def forward(self, x):
        return self.body(x)


def segmentation(out, labels):
    """At full resolution: four times as wide and high as what the network gives."""
    return F.cross_entropy(F.interpolate(out, scale_factor=4, mode="nearest"), labels, axis=1)


def absolute(out, labels):
    return (out - labels.astype("float64")[:, :, ::4, ::4] / 4).abs().mean() + (
        out[:, 1:3] * 2 / (1 + out[:, 0:1] ** 2)
    ).mean()


def contrastive(out, labels):
    rows = out.flatten(1)
    rows = rows / rows.norm(axis=1, keepdim=True)
    return paddle.nn.functional.log_softmax(rows @ rows.t() * 5, axis=1).diag().mean() * -1


def dropped(out, labels):
    """Random numbers in the loss region: drawn once, whatever is tried twice."""
    noise = paddle.randn(out.shape, "float64")
    return ((F.dropout(out, 0.3) - noise) ** 2).sum() / out.shape[0]


def labels_of(step):
    random = np.random.RandomState(50 + step)
    return paddle.to_tensor(random.randint(0, 4, (BATCH, 1, 4 * SIZE, 4 * SIZE)))


def train(loss_of, capacity):
    """Two steps at this capacity (None: of the device): weights, or None where it died of it."""
    gc.collect()
    paddle.device.cuda.empty_cache()
    paddle.seed(5)
    net = Segmenter()
    optimizer = paddle.optimizer.Adam(0.01, parameters=net.parameters())
    if capacity is not None:
        driver.simgpu_set_capacity(0, capacity)
    try:
        for step in range(2):
            x = paddle.to_tensor(np.random.RandomState(step).rand(BATCH, 3, SIZE, SIZE))
            loss = loss_of(net(x), labels_of(step))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            del loss
        return [p.numpy() for p in net.parameters()]
    except MemoryError:
        if capacity is None:
            raise
        nothing = paddle.optimizer.SGD(0.0, parameters=[paddle.create_parameter([1], "float64")])
        nothing.step()  # the next attempt is another step
        return None
    finally:
        if capacity is not None:
            driver.simgpu_set_capacity(0, ENOUGH)


def floor(loss_of):
    """Bytes that the fixed part and the loss take together, forward and backward, whatever the network does."""
    gc.collect()
    paddle.device.cuda.empty_cache()
    weights = sum(p.size for p in Segmenter().parameters()) * 8
    gc.collect()
    paddle.device.cuda.empty_cache()
    driver.simgpu_peak(0, 1)
    out = paddle.randn([BATCH, 4, SIZE, SIZE], "float64")
    out.stop_gradient = False
    loss_of(out * 1, labels_of(0)).backward()
    inputs = BATCH * 3 * SIZE * SIZE * 8
    return driver.simgpu_peak(0, 0) + 4 * weights + inputs + 2 * out.size * 8


def main():
    loss_of = globals()[kind]
    if not step_bytes:
        weights = train(loss_of, None)
        print(json.dumps({"peak": driver.simgpu_peak(0, 0), "weights": [weight.tolist() for weight in weights]}))
        return
    least = floor(loss_of)
    reference = train(loss_of, ENOUGH)
    largest = max(float(np.abs(weight).max()) for weight in reference)
    peak = paddle.device.cuda.max_memory_reserved()
    found = {}
    capacity = (peak >> 20) + 1 << 20
    while capacity > least:
        weights = train(loss_of, capacity)
        found[capacity] = weights and max(float(np.abs(a - b).max()) for a, b in zip(reference, weights)) / largest
        capacity -= step_bytes
    print(json.dumps({"peak": peak, "floor": least, "found": found}))


main()
