"""Loops that handle MemoryError themselves work as they were written; an OOM that no driver call has refused is met too."""

import importlib.metadata

import pytest

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("paddlepaddle").startswith("2."),
    reason="on a custom device Paddle 2.6 keeps its cache: a loop that halves its batch ends nowhere, guarded or not; the "
    "limit of a framework is no matter of its version",
)

LOOPS = """
    import json
    import paddle
    from paddle import nn

    paddle.set_device("gpu")
    paddle.set_default_dtype("float64")


    class Centred(nn.Layer):
        '''What one row gives depends on the others: it cannot be split.'''

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))

        def forward(self, x):
            out = self.net(x)
            return out - out.mean(0)


    def begin():
        paddle.seed(1)
        network = Centred()
        return network, paddle.optimizer.Momentum(0.1, parameters=network.parameters())


    def halving():
        '''Halves its own batch until a step fits.'''
        network, optimizer = begin()
        size, sizes = len(data), []
        for step in range(3):
            while True:
                try:
                    loss = network(data[:size]).square().mean()
                    loss.backward()
                    optimizer.step()
                    break
                except MemoryError:
                    loss = None
                    size //= 2
                    optimizer.clear_grad()
                    paddle.device.cuda.empty_cache()
            sizes.append(size)
            optimizer.clear_grad()
        return sizes, float(network.net[0].weight.sum())


    def skipping():
        '''Catches what the backward raises, and nothing else; frees its cache and goes on.'''
        network, optimizer = begin()
        skipped = []
        for step, size in enumerate((256, 5600, 256)):
            loss = network(data[:size]).square().mean()
            try:
                loss.backward()
            except MemoryError:
                skipped.append(step)
                loss = None
                optimizer.clear_grad()
                paddle.device.cuda.empty_cache()
                continue
            optimizer.step()
            optimizer.clear_grad()
        return skipped, float(network.net[0].weight.sum())


    data = (paddle.arange((1 << 14) * 64).astype("float64").reshape([-1, 64]) / 1e4).sin()
    print(json.dumps([halving(), skipping()]))
"""

LIMIT = """
    import json
    import paddle
    from paddle import nn

    paddle.set_device("gpu")
    paddle.set_default_dtype("float64")
    paddle.seed(1)
    REFUSED = (
        "ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 3.0MB memory on GPU 0, 9.0MB memory has been "
        "allocated and available memory is only 1.0MB. If no, please increase the flag FLAGS_gpu_memory_limit_mb."
    )


    def empty_cache():
        raise MemoryError(REFUSED)


    class Limited(nn.Linear):
        limit = 1000

        def forward(self, x):
            if len(x) > self.limit:
                raise MemoryError(REFUSED)
            return super().forward(x)


    def train():
        paddle.seed(1)
        network = nn.Sequential(Limited(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = paddle.optimizer.SGD(0.1, parameters=network.parameters())
        for step in range(3):
            network((paddle.arange(160).astype("float64").reshape([20, 8]) / 7).sin()).square().mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        return [float(parameter.sum()) for parameter in network.parameters()]


    whole = train()
    paddle.device.cuda.empty_cache = empty_cache
    Limited.limit = 7
    print(json.dumps([whole, train()]))
"""


def test_loops_that_handle_it_themselves(run_job):
    plain = run_job(LOOPS, memory="40MiB", preload=False)
    job = run_job(LOOPS, memory="40MiB")
    assert plain.returncode == job.returncode == 0, (plain, job)
    (sizes, _), (skipped, _) = plain.result
    assert max(sizes) < 1 << 14 and skipped == [1], plain
    assert job.result == plain.result, job
    assert job.events_of("refused") and not job.events_of("applied"), job


def test_a_limit_of_the_framework_and_a_cache_that_cannot_be_emptied(run_job):
    job = run_job(LIMIT)
    assert job.returncode == 0, job
    whole, limited = job.result
    assert all(abs(a - b) <= 1e-10 * abs(a) for a, b in zip(whole, limited)), job
    assert max(event["accumulation_steps"] for event in job.events_of("step")) >= 3, job
    assert "framework-limit" in {event["reason"] for event in job.events_of("decision")}, job
