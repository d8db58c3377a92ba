"""The collectives of the simulated GPU, through paddle.distributed: against numpy, and where NCCL would hang."""

import signal

import pytest

BEGIN = """
import json, os, sys, time
import numpy as np
import paddle, paddle.distributed as dist
paddle.set_device("gpu")
dist.init_parallel_env()
rank, world = dist.get_rank(), dist.get_world_size()
"""

ALL = """
def data(of, shape=(5,), dtype="float32"):
    return (np.random.RandomState(of).rand(*shape) * 50).astype(dtype)
def tensor(*args, **kwargs):
    return paddle.to_tensor(data(*args, **kwargs))
everybody = range(world)
wrong = []
def check(name, got, wanted, exact=False):
    got = got.numpy() if hasattr(got, "numpy") else got
    if got.shape != wanted.shape or not (np.array_equal(got, wanted) if exact else np.allclose(got, wanted, rtol=1e-5)):
        wrong.append("%s: %s instead of %s" % (name, got.ravel()[:8], wanted.ravel()[:8]))

for dtype in ("float32", "float64", "int32", "int64", "uint8"):
    for shape in ((1,), (7, 3), (700001,)):  # the last is more than the ranks show each other at once
        if shape == (700001,) and dtype not in ("float32", "float64"):
            continue
        all_data = [data(i, shape, dtype) for i in everybody]
        for name, op, by in (("sum", dist.ReduceOp.SUM, np.add), ("max", dist.ReduceOp.MAX, np.maximum),
                             ("min", dist.ReduceOp.MIN, np.minimum)):
            t = tensor(rank, shape, dtype)
            dist.all_reduce(t, op)
            wanted = all_data[0]
            for other in all_data[1:]:
                wanted = by(wanted, other)
            check("all_reduce %s %s %s" % (name, dtype, shape), t, wanted.astype(dtype), exact=True)
        t = tensor(rank, shape, dtype)
        dist.broadcast(t, src=world - 1)
        check("broadcast %s %s" % (dtype, shape), t, all_data[world - 1], exact=True)
        found = []
        dist.all_gather(found, tensor(rank, shape, dtype))
        for i in everybody:
            check("all_gather %s %s" % (dtype, shape), found[i], all_data[i], exact=True)

t = tensor(rank)
dist.reduce(t, dst=0)
check("reduce", t, sum(data(i) for i in everybody) if rank == 0 else data(rank))
t = paddle.zeros([4])
dist.reduce_scatter(t, [tensor(10 * rank + i, (4,)) for i in everybody])
check("reduce_scatter", t, sum(data(10 * i + rank, (4,)) for i in everybody))
out = [paddle.zeros([3]) for i in everybody]
dist.alltoall(out_tensor_list=out, in_tensor_list=[tensor(10 * rank + i, (3,)) for i in everybody])
for i in everybody:
    check("alltoall", out[i], data(10 * i + rank, (3,)))
for size in (3, 40000):  # the second is more than one letter
    if rank == 0:
        dist.send(tensor(77, (size,)), dst=1)
    elif rank == 1:
        t = paddle.zeros([size])
        dist.recv(t, src=0)
        check("send and recv", t, data(77, (size,)), exact=True)
pair = dist.new_group([0, 1])
if rank < 2:
    t = tensor(rank)
    dist.all_reduce(t, group=pair)
    check("all_reduce of two", t, data(0) + data(1))
dist.barrier()
print(json.dumps(wrong))
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives_give_what_numpy_gives(run_ranks, ranks):
    for job in run_ranks(BEGIN + ALL, ranks=ranks, preload=False):
        assert job.returncode == 0 and job.result == [], job


def test_ranks_that_do_not_do_the_same_are_told(run_ranks):
    jobs = run_ranks(BEGIN + "dist.all_reduce(paddle.zeros([10 + rank]))\n", preload=False)
    for job in jobs:
        assert job.returncode != 0 and "simgpu: the ranks are not doing the same" in job.stderr, job


def test_nobody_waits_for_the_killed(run_ranks):
    script = """
    for step in range(100000):
        dist.all_reduce(paddle.zeros([10]))
        print("step", step)
    """
    jobs = run_ranks(BEGIN + "\n".join(line[4:] for line in script.splitlines()), preload=False, kill=(1, "step 20\n"))
    assert jobs[1].returncode == -signal.SIGKILL, jobs[1]
    assert jobs[0].returncode not in (0, -signal.SIGKILL), jobs[0]
    assert "simgpu: rank 0 waits for rank 1, which is gone" in jobs[0].stderr, jobs[0]


LAUNCHED = """
import os, sys, paddle, paddle.distributed as dist
def train():
    paddle.set_device("gpu")
    dist.init_parallel_env()
    t = paddle.ones([3]) * (dist.get_rank() + 1)
    dist.all_reduce(t)
    open("result%d" % dist.get_rank(), "w").write("%s %s" % (t.numpy().tolist(), t.place))
if __name__ == "__main__":
    if sys.argv[1:] == ["launch"]:
        train()
    elif sys.argv[1:] == ["spawn"]:
        # Paddle 2 would take a device called gpu for NVIDIA's.
        dist.spawn(train, nprocs=2, backend="xccl" if paddle.__version__.startswith("2.") else "auto")
    else:
        command = [sys.executable, "-m", "paddle.distributed.launch", "--log_dir", "logs", __file__, "launch"]
        os.execv(sys.executable, command)
"""


@pytest.mark.parametrize("way", ["launcher", "spawn"])
def test_launch_and_spawn_run_a_rank_a_device(run_job, way):
    job = run_job(LAUNCHED, way, simgpu=["--devices", "2"], preload=False)
    assert job.returncode == 0, job
    for rank in range(2):
        assert (job.folder / f"result{rank}").read_text() == f"[3.0, 3.0, 3.0] Place(gpu:{rank})", job
