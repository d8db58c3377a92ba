"""Each place that is tried once more rather than split, while another process has taken all that is left of the device; it
gives that back a second after the job has run out of memory. The last line is JSON: what came of it without the other
process, and with it.
"""

import json
import os
import subprocess
import sys

import numpy as np
import paddle
import paddle.nn as nn

OTHER = """
import ctypes, glob, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0

def ooms():
    return sum(open(path).read().count('"type":"oom"') for path in glob.glob("bsguard/*/events.jsonl"))

for _ in sys.stdin:
    before, taken, size = ooms(), [], 1 << 20
    while size >= 512:
        address = ctypes.c_uint64()
        if cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0:
            taken.append(address)
        else:
            size //= 2
    print("there", flush=True)
    until = time.monotonic() + 100
    while ooms() == before and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(1)
    for address in taken:
        assert cuda.cuMemFree_v2(address) == 0
    print("gone", flush=True)
"""

ROWS, WIDTH = 256, 512


class Rows(paddle.io.Dataset):
    """Two batches."""

    def __len__(self):
        return 2 * ROWS

    def __getitem__(self, index):
        return np.cos(np.arange(WIDTH) + index)


def run(beside):
    """What each place gave. beside(what, function): calls the function."""
    paddle.seed(3)
    results = []
    network = beside("a new parameter", lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)))
    optimizer = paddle.optimizer.Adam(0.01, parameters=network.parameters(), grad_clip=nn.ClipGradByGlobalNorm(1.0))
    x = beside("to_tensor", lambda: paddle.to_tensor(np.sin(np.arange(ROWS * WIDTH)).reshape([ROWS, WIDTH])))
    out = network(x)
    difference = beside("subtract", lambda: out - x)  # the network's graph is dropped for it: none is held any more
    loss = difference.square().mean()
    beside("the backward of the loss", loss.backward)
    beside("the optimizer's step", optimizer.step)
    optimizer.clear_grad()
    results += [float(loss), float(network[0].weight.square().sum())]
    out = difference = loss = None
    batches = beside("the next batch of the DataLoader", lambda: list(paddle.io.DataLoader(Rows(), batch_size=ROWS)))
    results.append(float(sum(batch[0].square().sum() for batch in batches)))
    return results


paddle.set_device("gpu")
paddle.set_default_dtype("float64")
alone = run(lambda what, function: function())
environment = dict(os.environ, BSGUARD="0")
other = subprocess.Popen(
    [sys.executable, "-c", OTHER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
)


def beside(what, function):
    """The function, while the other process has all memory."""
    paddle.device.cuda.empty_cache()
    other.stdin.write("take\n")
    other.stdin.flush()
    assert other.stdout.readline() == "there\n"
    result = function()
    assert other.stdout.readline() == "gone\n", what
    return result


together = run(beside)
other.stdin.close()
other.wait()
print(json.dumps([alone, together]))
