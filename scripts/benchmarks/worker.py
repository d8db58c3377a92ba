"""One training job of `bench job`: runs as many steps as it is told on standard input, and answers with their times.

A script of its own that knows nothing of bsguard. Protocol, one line each: the parent writes a number of steps, the job
runs them and writes their times in seconds as a JSON list; an empty line or the end of input ends it.
"""

import argparse
import json
import os
import sys
import time

import numpy as np
import paddle
from paddle import nn


class Transformer(nn.Layer):
    """Two encoder layers over 32 tokens, and a classifier on their mean."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1), 2)
        self.classifier = nn.Linear(64, 10)

    def forward(self, tokens):
        return self.classifier(self.encoder(self.embedding(tokens)).mean(axis=1))


def make_mlp():
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), np.random.randn(128, 256).astype("float32")


def make_cnn():
    layers = [nn.Conv2D(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2D(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 8 * 8, 10))
    return network, np.random.randn(64, 1, 16, 16).astype("float32")


def make_transformer():
    return Transformer(), np.random.randint(0, 1000, (32, 32))


MODELS = {"mlp": make_mlp, "cnn": make_cnn, "transformer": make_transformer}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    arguments = parser.parse_args()
    paddle.set_device("gpu")
    paddle.seed(1)
    np.random.seed(1)
    model, batch = MODELS[arguments.model]()
    inputs = paddle.to_tensor(batch)
    labels = paddle.to_tensor(np.random.randint(0, 10, len(batch)))
    if int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        paddle.distributed.init_parallel_env()
        model = paddle.DataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())

    for line in sys.stdin:
        if not line.strip():
            break
        seconds = []
        for _ in range(int(line)):
            started = time.perf_counter()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            float(loss)  # waits for the device
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
