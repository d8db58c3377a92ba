"""What cannot be met is told in a line that names the way out, and in the report."""

import importlib.metadata

import pytest

from benchmarks import exactness

static_programs = pytest.mark.skipif(
    importlib.metadata.version("paddlepaddle").startswith("2."),
    reason="Paddle 2.6 runs no static program on the simulated GPU: its custom devices have no memcpy_d2h operator",
)

STATIC = """
    import numpy as np, paddle, paddle.nn as nn

    paddle.enable_static()
    paddle.set_device("gpu")
    main, start = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, start):
        x = paddle.static.data("x", [None, 1024])
        loss = (nn.Linear(1024, 4096)(x) ** 2).mean()
        paddle.optimizer.SGD(0.1).minimize(loss)
    executor = paddle.static.Executor(paddle.CUDAPlace(0))
    executor.run(start)
    executor.run(main, feed={"x": np.ones([4096, 1024], "float32")}, fetch_list=[loss])
"""

DISARMED = """
    import numpy as np, paddle, paddle.nn as nn, paddle.nn.functional as F
    import ctypes

    paddle.set_device("gpu")
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    driver = ctypes.CDLL("libcuda.so.1")
    driver.simgpu_set_capacity.argtypes = [ctypes.c_int, ctypes.c_uint64]
    driver.simgpu_used.restype = ctypes.c_uint64
    for step in range(3):
        loss = F.cross_entropy(net(paddle.ones([256, 256]) * step), paddle.zeros([256, 1], "int64"))
        if step == 2:  # a neighbour takes the rest of the card between forward and backward
            paddle.device.cuda.empty_cache()
            driver.simgpu_set_capacity(0, driver.simgpu_used(0))
        loss.backward(); optimizer.step(); optimizer.clear_grad()
"""


@static_programs
def test_a_static_graph(run_job):
    plain = run_job(STATIC, memory="32MiB", preload=False)
    job = run_job(STATIC, memory="32MiB")
    assert plain.returncode == job.returncode != 0, f"{plain}\n{job}"
    assert any("static graph is not split" in line for line in job.lines_of_bsguard), job
    assert "static graph is not split" in (job.run / "report.txt").read_text()


def test_a_step_that_was_not_prepared(run_job):
    # No cache: Paddle 2.6 cannot empty it, and would live on it.
    job = run_job(DISARMED, memory="256MiB", env=exactness.UNCACHED)
    assert job.returncode == 1 and "MemoryError" in job.stderr, job
    assert any("BSGUARD_ARM=always" in line for line in job.lines_of_bsguard), job
    armed = run_job(DISARMED, memory="256MiB", env={"BSGUARD_ARM": "always", **exactness.UNCACHED})
    assert armed.returncode == 1 or armed.events_of("applied"), armed


# What talks to other ranks, as far as one process can build it: stand-ins of Paddle's names, in a job that is told of two
# ranks, and Paddle's own SyncBatchNorm in a job of one.
COLLECTIVES = """
    import sys
    import paddle, paddle.nn as nn, paddle.nn.functional as F

    paddle.set_device("gpu")
    kind = sys.argv[1]
    if kind == "SyncBatchNorm":
        layer = nn.SyncBatchNorm(64)
        layer.forward = lambda x: x  # it needs a process group to run, and none to be refused
    else:
        class Derived(type(kind, (nn.Linear,), {})):
            pass
        layer = Derived(64, 64)
        if kind != "MoELayer":
            paddle.distributed.get_world_size = lambda group=None: 2
    net = nn.Sequential(nn.Linear(512, 64), layer, nn.Linear(64, 4096), nn.Linear(4096, 10))
    x, y = paddle.ones([4096, 512]), paddle.zeros([4096], "int64")
    F.cross_entropy(net(x), y).backward()
"""


@pytest.mark.parametrize(
    "kind", ["SyncBatchNorm", "ColumnParallelLinear", "VocabParallelEmbedding", "PipelineLayer", "MoELayer"]
)
def test_collectives_in_the_forward(run_job, kind):
    """One line, and the original exception."""
    plain = run_job(COLLECTIVES, kind, memory="48MiB", preload=False)
    job = run_job(COLLECTIVES, kind, memory="48MiB")
    assert plain.returncode == job.returncode == 1, f"{plain}\n{job}"
    assert "MemoryError" in plain.stderr and "MemoryError" in job.stderr, job
    told = [line for line in job.lines_of_bsguard if "will not be split" in line]
    assert len(told) == 1 and f"{kind} has collectives inside the forward" in told[0], job
    assert [event["exactness"] for event in job.events_of("applied")] == []


IN_THE_OPTIMIZER = """
    import ctypes
    import paddle, paddle.nn as nn

    paddle.set_device("gpu")
    net = nn.Linear(256, 256)
    optimizer = paddle.optimizer.Adam(0.1, parameters=net.parameters())
    driver = ctypes.CDLL("libcuda.so.1")
    driver.simgpu_set_capacity.argtypes = [ctypes.c_int, ctypes.c_uint64]
    driver.simgpu_used.restype = ctypes.c_uint64
    net(paddle.ones([16, 256])).sum().backward()
    paddle.device.cuda.empty_cache()
    driver.simgpu_set_capacity(0, driver.simgpu_used(0))
    optimizer.step(); optimizer.step()
"""


def test_moments_that_do_not_fit_are_told_to_be_the_optimizers(run_job):
    job = run_job(IN_THE_OPTIMIZER, memory="64MiB")
    assert job.returncode == 1 and "MemoryError" in job.stderr, job
    assert {event["phase"] for event in job.events_of("oom")} == {"optimizer"}, job
    assert any("OOM in optimizer" in line and "no smaller batch" in line for line in job.lines_of_bsguard), job
