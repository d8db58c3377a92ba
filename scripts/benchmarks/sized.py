"""The job of `bench fit`: three steps at each batch size that it is told, smaller ones first, then its peak.

A script of its own that knows nothing of bsguard. Prints one line of JSON: the framework's allocated peak in bytes.
"""

import argparse
import json

import numpy as np
import paddle
from paddle import nn
from worker import MODELS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("sizes", type=int, nargs="+", help="samples")
    arguments = parser.parse_args()
    paddle.set_device("gpu")
    paddle.seed(1)
    np.random.seed(1)
    model, batch = MODELS[arguments.model]()
    criterion = nn.CrossEntropyLoss()
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    for size in arguments.sizes:
        inputs = paddle.to_tensor(np.resize(batch, (size, *batch.shape[1:])))
        labels = paddle.to_tensor(np.random.randint(0, 10, size))
        for _ in range(3):
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            float(loss)
    print(json.dumps(paddle.base.core.device_memory_stat_peak_value("Allocated", 0)))


if __name__ == "__main__":
    main()
