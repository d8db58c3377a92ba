"""The job of `bench rescue --retry`, on the plain CPU and under the preload: memory seems to run out again and again, and the
times from the exception to the start of the next attempt are noted. Prints them as one line of JSON:
{"first": [[whole, trial, freeing, busy, trying], ...], "backward": [...], "later": [...]}, in seconds. The trial of a split and
what freeing takes are parts of the whole; busy and trying: the whole and the trial in seconds of the processor.

One network after another, so that no size is known: after a clean step the forward of the whole batch fails at its very
end, when everything is allocated, and the split has to be tried out (`first`); then the backward of a chunk; then the
forward of one (`later`).
"""

import argparse
import json
import time

import cpu_device
import numpy as np
import paddle
import rescue_worker
from paddle import nn

from bsguard_paddle import boundary, proof, rescue, runtime

BATCH = 16
DEVICE = 1 << 36  # bytes
TEXT = "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 3.000000GB memory on GPU 0, %s"


class Network(nn.Layer):
    """Twelve encoder layers: some hundred parameters, with two moments each."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1), 12)
        self.classifier = nn.Linear(128, 10)

    def forward(self, tokens):
        return self.classifier(self.encoder(self.embedding(tokens)).mean(axis=1))


def make_transformer():
    return Network(), np.random.randint(0, 1000, (BATCH, 16))


def make_resnet18():
    network, batch = rescue_worker.make_resnet18(0.0)
    return network, batch[:BATCH]


MODELS = {"resnet18": make_resnet18, "transformer": make_transformer}
FAILS = {"first": "forward", "backward": "backward", "later": "forward"}


class Clock:
    """Stands between bsguard and Paddle's two choke points: raises the exception, and sees the next attempt begin."""

    def __init__(self):
        self.fail = None  # the choke point that is to fail next, once
        self.raised = self.busy = None
        self.times = []
        self._call, self._backward = runtime.runtime.layer_call, runtime.runtime.run_backward
        self._depth = self._backwards = 0
        runtime.runtime.layer_call, runtime.runtime.run_backward = self.layer_call, self.run_backward
        rescue.reclaim = boundary.reclaim = self._timed(rescue.reclaim, 1)
        proof.prove = self._timed(proof.prove, 0)

    def start(self, where):
        """A step begins, in which this is to fail."""
        self.fail, self._backwards = where, 0

    def _timed(self, function, part):
        def timed(*args):
            started, busy = time.perf_counter(), time.process_time()
            try:
                return function(*args)
            finally:
                if self.raised is not None:
                    self.parts[part] += time.perf_counter() - started
                    self.busy_in_part[part] += time.process_time() - busy

        return timed

    def _begins(self):
        """An attempt: the next one, where the exception was raised before."""
        if self.raised is not None:
            whole, busy = time.perf_counter() - self.raised, time.process_time() - self.busy
            self.times.append([whole, *self.parts, busy, self.busy_in_part[0]])
            self.raised = None

    def _may_fail(self, where):
        if self.fail == where:
            self.fail = None
            self.parts, self.busy_in_part = [0.0, 0.0], [0.0, 0.0]  # trial, freeing
            self.raised, self.busy = time.perf_counter(), time.process_time()
            raise MemoryError(TEXT % "available memory is only 1.000000GB.")

    def layer_call(self, layer, *args, **kwargs):
        if self._depth or runtime.thread.trial:
            return self._call(layer, *args, **kwargs)
        self._begins()
        self._depth += 1
        try:
            result = self._call(layer, *args, **kwargs)
        finally:
            self._depth -= 1
        self._may_fail("forward")
        return result

    def run_backward(self, *args):
        if not runtime.thread.inside:
            return self._backward(*args)
        self._begins()  # with the backward of a chunk whose graph was kept, where there is one
        result = self._backward(*args)
        self._backwards += 1
        if self._backwards == 2:  # the first is that of the loss, which no chunking makes smaller
            self._may_fail("backward")
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("networks", type=int)
    arguments = parser.parse_args()
    paddle.set_device("cpu")
    paddle.seed(1)
    np.random.seed(1)
    criterion = nn.CrossEntropyLoss()
    labels = paddle.to_tensor(np.random.randint(0, 10, BATCH))
    cpu_device.take(paddle, DEVICE)
    clock, found = Clock(), {kind: [] for kind in FAILS}
    for _ in range(arguments.networks):
        model, batch = MODELS[arguments.model]()
        inputs = paddle.to_tensor(batch)
        optimizer = paddle.optimizer.Adam(1e-4, parameters=model.parameters())
        for kind in ("clean", *FAILS):  # in the clean one the optimizer's moments appear
            clock.start(FAILS.get(kind))
            criterion(model(inputs), labels).backward()
            optimizer.step()
            optimizer.clear_grad()
            if kind in found:
                found[kind] += clock.times
            clock.times.clear()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
