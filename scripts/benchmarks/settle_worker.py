"""The job of `bench settle`: a training whose every step has a length of its own, by seed. Knows nothing of bsguard.

Protocol, one line each: a number of steps runs so many and is answered with a JSON list of [seconds, peak in bytes of what
Paddle has allocated] for each; an empty line or the end of input ends it.
"""

import argparse
import json
import sys
import time

import numpy as np
import paddle
from paddle import nn

BATCH = 64
CORE = paddle.base.core
TEXT = "Allocated", 0


class Network(nn.Layer):
    """A classifier of sequences whose memory is that of its activations."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, 48)
        blocks = [nn.Sequential(nn.Linear(48, 192), nn.GELU(), nn.Linear(192, 48)) for _ in range(3)]
        self.blocks = nn.LayerList(blocks)
        self.classifier = nn.Linear(48, 10)

    def forward(self, tokens):
        out = self.embedding(tokens)
        for block in self.blocks:
            out = out + block(out)
        return self.classifier(out.mean(axis=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lengths", type=json.loads, help="a list of the lengths of all steps")
    parser.add_argument(
        "--chunks", type=json.loads, help="a list of how many parts each step is accumulated by hand over"
    )
    arguments = parser.parse_args()
    paddle.set_device("gpu")
    paddle.seed(1)
    random = np.random.RandomState(1)
    model, criterion = Network(), nn.CrossEntropyLoss()
    optimizer = paddle.optimizer.Momentum(1e-3, parameters=model.parameters())
    step = 0
    for line in sys.stdin:
        if not line.strip():
            break
        found = []
        for _ in range(int(line)):
            length = arguments.lengths[step % len(arguments.lengths)]
            chunks = arguments.chunks[step % len(arguments.chunks)] if arguments.chunks else 1
            tokens, labels = random.randint(0, 500, (BATCH, length)), random.randint(0, 10, BATCH)
            CORE.device_memory_stat_reset_peak_value(*TEXT)
            started = time.perf_counter()
            for rows in np.array_split(np.arange(BATCH), chunks):
                out = model(paddle.to_tensor(tokens[rows]))
                loss = criterion(out, paddle.to_tensor(labels[rows])) * (len(rows) / BATCH)
                loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            float(loss)
            found.append([time.perf_counter() - started, CORE.device_memory_stat_peak_value(*TEXT)])
            step += 1
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
