"""The job of `bench job --calls`, on the plain CPU: a network so small that the calls are all that its steps take.

Protocol, one line each: a number of steps runs so many and is answered with a JSON list of the processor's microseconds, the
lower quartile over these steps: [call of the network, backward, optimizer's step]. An empty line or the end of input ends it.
"""

import json
import sys
import time

import cpu_device
import paddle

DEVICE = 1 << 36  # bytes


def busy():
    """Microseconds of the processor that this process took so far."""
    return time.process_time_ns() / 1000


def main():
    paddle.set_device("cpu")
    paddle.seed(1)
    network = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 8))
    optimizer = paddle.optimizer.SGD(0.1, parameters=network.parameters())
    inputs = paddle.ones([4, 8])
    cpu_device.take(paddle, DEVICE)
    for line in sys.stdin:
        if not line.strip():
            break
        took = []
        for _ in range(int(line)):
            started = busy()
            outputs = network(inputs)
            called = busy()
            loss = outputs.mean()
            built = busy()
            loss.backward()
            back = busy()
            optimizer.step()
            took.append((called - started, back - built, busy() - back))
            optimizer.clear_grad()
        print(json.dumps([sorted(times)[len(times) // 4] for times in zip(*took)]), flush=True)


if __name__ == "__main__":
    main()
