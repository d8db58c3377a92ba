"""One training job of `bench rescue`, on the plain CPU: takes orders on standard input and answers with the times of its steps.

Protocol, a line of JSON each: {"steps": N, "chunks": K, "loss": NAME} runs N steps, each accumulated by hand over K parts of
the batch, and is answered with [seconds, ...]; {"peak": true} with the bytes of host memory that tensors took at their
highest. An empty line or the end of input ends it.

With --as-device BYTES, and under the preload, bsguard takes the CPU for a device of that much memory (cpu_device.py); it is
told in how many chunks to run as any job is, by a request.json. The training itself knows nothing of bsguard.
"""

import argparse
import json
import sys
import time

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

BATCH = 32


class Transformer(nn.Layer):
    """Four encoder layers over 64 tokens, and a classifier on their mean."""

    def __init__(self, dropout):
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, dropout=dropout), 4)
        self.classifier = nn.Linear(128, 10)

    def forward(self, tokens):
        return self.classifier(self.encoder(self.embedding(tokens)).mean(axis=1))


def make_resnet18(dropout):
    del dropout  # it has none
    return paddle.vision.models.resnet18(num_classes=10), np.random.randn(BATCH, 3, 32, 32).astype("float32")


def make_transformer(dropout):
    return Transformer(dropout), np.random.randint(0, 1000, (BATCH, 64))


def smoothed(outputs, labels):
    """Cross-entropy with smoothed labels, by hand, its targets made in the loop: no one function of outputs and labels."""
    targets = F.one_hot(labels, 10) * 0.9 + 0.01
    return -(targets * F.log_softmax(outputs)).sum(axis=1).mean()


MODELS = {"resnet18": make_resnet18, "transformer": make_transformer}
LOSSES = {"foreseeable": nn.CrossEntropyLoss(), "opaque": smoothed}


def peak():
    """Bytes of host memory that tensors took at their highest."""
    return paddle.base.core.host_memory_stat_peak_value("Allocated", 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--as-device", type=int, metavar="BYTES")
    parser.add_argument("--dropout", type=float, default=0.0, metavar="P")
    arguments = parser.parse_args()
    paddle.set_device("cpu")
    paddle.seed(1)
    np.random.seed(1)
    model, batch = MODELS[arguments.model](arguments.dropout)
    inputs = paddle.to_tensor(batch)
    labels = paddle.to_tensor(np.random.randint(0, 10, len(batch)))
    optimizer = paddle.optimizer.Momentum(1e-3, parameters=model.parameters())
    if arguments.as_device:
        import cpu_device

        cpu_device.take(paddle, arguments.as_device)

    for line in sys.stdin:
        if not line.strip():
            break
        order = json.loads(line)
        if "peak" in order:
            print(json.dumps(peak()), flush=True)
            continue
        criterion, chunks, seconds = LOSSES[order["loss"]], order["chunks"], []
        size = BATCH // chunks
        for _ in range(order["steps"]):
            started = time.perf_counter()
            if chunks == 1:
                loss = criterion(model(inputs), labels)
                loss.backward()
            else:
                for at in range(0, BATCH, size):
                    loss = criterion(model(inputs[at : at + size]), labels[at : at + size]) / chunks
                    loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            float(loss)
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
