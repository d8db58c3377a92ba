"""Jobs of many ranks: no drift, no hang, and what exchanges data inside a forward is refused.

jobs/drift.py refuses memory by seed on some ranks at some steps; jobs/ranks.py has small jobs that must come out as
without bsguard, bit for bit, at one chunk.
"""

import json
import pathlib
import signal

import numpy as np
import pytest

JOBS = pathlib.Path(__file__).parent / "jobs"
ROUNDING = 1e-9  # of float64, through four steps


def check_drift(jobs, cases):
    hit = dict.fromkeys(("forward", "loss", "backward", "optimizer"), 0)
    for job in jobs:
        assert job.returncode == 0, job
        assert job.result["cases"] == cases and job.result["unequal"] == [], job
        assert job.result["worst"] < ROUNDING, job
        for phase, count in job.result["hit"].items():
            hit[phase] += count
    return hit


def test_ranks_do_not_drift_apart(run_ranks):
    jobs = run_ranks(JOBS / "drift.py", 8, 4, env={"BSGUARD_ARM": "always", "BSGUARD_WAIT": "0"}, timeout=300)
    hit = check_drift(jobs, 4)
    assert sum(hit.values()), hit
    assert any("now runs" in line for job in jobs for line in job.lines_of_bsguard), jobs


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_do_not_drift_apart_in_200_cases(run_ranks, ranks):
    hit = check_drift(
        run_ranks(
            JOBS / "drift.py", 0, 200, ranks=ranks, env={"BSGUARD_ARM": "always", "BSGUARD_WAIT": "0"}, timeout=3600
        ),
        200,
    )
    assert all(hit.values()), hit


REHEARSED = """
    import ctypes, json
    import paddle
    from bsguard_paddle import ranks

    driver = ctypes.CDLL("libcuda.so.1")
    driver.simgpu_calls.restype = ctypes.c_uint64
    paddle.set_device("gpu")


    def pieces(times):
        paddle.empty([990 * times * 256], "float32")  # free in the cache
        return [(kib * times * 256, "float32") for kib in (438, 562, 438)]


    def asked(wanted):
        before = driver.simgpu_calls()
        held = [paddle.empty([size], dtype) for size, dtype in wanted]
        return driver.simgpu_calls() - before


    wanted = pieces(1)
    first, second = asked(wanted), asked(wanted)
    wanted = pieces(4)
    ranks._rehearse(wanted)
    print(json.dumps([first, second, asked(wanted)]))
    """


def test_what_the_reducer_takes_is_rehearsed_until_the_driver_is_asked_for_nothing(run_job):
    """What one round leaves in the cache may fit worse than what was there before it: the next one asks again."""
    job = run_job(REHEARSED)
    assert job.returncode == 0, job
    first, second, rehearsed = job.result
    assert first and second and rehearsed == 0, job


@pytest.mark.slow
def test_ranks_that_are_armed_and_others_meet(run_ranks):
    """One rank hands its gradients over after the backward in every step, the other only where it has to."""
    arms = {0: {"BSGUARD_ARM": "always"}, 1: {"BSGUARD_ARM": "never"}}
    assert check_drift(
        run_ranks(JOBS / "drift.py", 500, 20, env={"BSGUARD_WAIT": "0"}, rank_env=arms, timeout=1200), 20
    )["forward"]


ALIKE = {
    "plain": ["plain", 3],
    "hooks": ["hooks"],
    "gradients": ["gradients"],
    "two_networks": ["two_networks"],
    "wrapped": ["wrapped"],
    "by_hand": ["by_hand"],
    "fleet": ["fleet_data_parallel"],
}


def outcomes(jobs):
    for job in jobs:
        assert job.returncode == 0, job
    return [job.result for job in jobs]


@pytest.mark.parametrize("case", ["gradients", "two_networks"])
def test_nothing_of_it_is_seen_at_one_chunk(run_ranks, case):
    script = JOBS / "ranks.py"
    assert outcomes(run_ranks(script, *ALIKE[case], env={"BSGUARD_ARM": "always"})) == outcomes(
        run_ranks(script, *ALIKE[case], preload=False)
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "hooks", "wrapped", "by_hand", "fleet"])
def test_nothing_of_more_is_seen_at_one_chunk(run_ranks, case):
    test_nothing_of_it_is_seen_at_one_chunk(run_ranks, case)


REFUSED = {
    "sync_batch_norm": (["sync_batch_norm"], "SyncBatchNorm"),
    "collective": (["collective_in_forward"], "exchanges data with other ranks (all_reduce)"),
    "tensor_parallel": (["tensor_parallel"], "ColumnParallelLinear"),
    "pipeline": (["pipeline"], "the job is a pipeline of 2 stages"),
    "experts": (["experts"], "MoELayer"),
    "stage_1": (["sharded", "os"], "GroupSharded"),
    "stage_2": (["sharded", "os_g"], "GroupShardedStage2"),
    "stage_3": (["sharded", "p_g_os"], "GroupShardedStage3"),
}


def check_refused(run_ranks, arguments, why):
    plain = outcomes(run_ranks(JOBS / "ranks.py", *arguments, preload=False))
    jobs = run_ranks(JOBS / "ranks.py", *arguments, env={"BSGUARD_ARM": "always"})
    assert outcomes(jobs) == plain
    for job in jobs:
        said = [line for line in job.lines_of_bsguard if "left alone" in line]
        assert len(said) == 1 and why in said[0], job


@pytest.mark.parametrize("case", ["collective"])
def test_what_exchanges_data_inside_a_forward_runs_on_unguarded(run_ranks, case):
    check_refused(run_ranks, *REFUSED[case])


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(set(REFUSED) - {"collective"}))
def test_layers_that_exchange_data_run_on_unguarded(run_ranks, case):
    check_refused(run_ranks, *REFUSED[case])


def test_a_killed_rank_ends_the_others_and_leaves_nothing_in_the_way(run_ranks):
    env = {"BSGUARD_ARM": "always"}
    ends = []
    for preload in (True, False):
        killed = run_ranks(JOBS / "ranks.py", "slow", env=env, preload=preload, name="job", kill=(1, "step 5\n"))
        assert killed[1].returncode == -signal.SIGKILL, killed[1]
        ends.append(killed[0].returncode)
    assert ends[0] == ends[1] != 0, killed[0]
    again = run_ranks(JOBS / "ranks.py", "plain", 2, env=env, name="job")
    outcomes(again)
    runs = again[0].runs
    assert [sorted(path.name for path in run.glob("rank*")) for run in runs] == [["rank0", "rank1"]] * 2
    for run in runs:
        for rank in range(2):
            first = (run / f"rank{rank}" / "events.jsonl").read_text().splitlines()[0]
            assert json.loads(first)["rank"] == rank


STARTED = """
    import os, sys
    import numpy as np
    import paddle
    import paddle.distributed as dist
    from paddle import nn


    def train():
        paddle.set_device("gpu")
        paddle.set_default_dtype("float64")
        dist.init_parallel_env()
        paddle.seed(3)
        net = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4))
        model = paddle.DataParallel(net)
        optimizer = paddle.optimizer.Momentum(0.1, parameters=model.parameters())
        random = np.random.RandomState(dist.get_rank())
        for _ in range(3):
            x, y = random.rand(2048, 32), random.rand(2048, 4)
            nn.functional.mse_loss(model(paddle.to_tensor(x)), paddle.to_tensor(y)).backward()
            optimizer.step()
            optimizer.clear_grad()
        np.save("weights%d" % dist.get_rank(), np.concatenate([p.numpy().ravel() for p in net.parameters()]))


    if __name__ == "__main__":
        if sys.argv[1:] == ["rank"]:
            train()
        elif sys.argv[1:] == ["spawn"]:
            # Paddle 2 would take a device called gpu for NVIDIA's.
            dist.spawn(train, nprocs=2, backend="xccl" if paddle.__version__.startswith("2.") else "auto")
        else:
            command = [sys.executable, "-m", "paddle.distributed.launch", "--log_dir", "logs", __file__, "rank"]
            os.execv(sys.executable, command)
    """


@pytest.mark.parametrize("way", [pytest.param("launch", marks=pytest.mark.slow), "spawn"])
def test_ranks_that_paddle_starts_are_one_run(run_job, way):
    """Started by paddle.distributed.launch or spawn, with less memory than they take: no drift, and one folder."""
    plain = run_job(STARTED, way, simgpu=["--devices", "2"], preload=False)
    job = run_job(STARTED, way, simgpu=["--devices", "2"], memory="14MiB", name="guarded")
    assert plain.returncode == job.returncode == 0, job
    wanted, *weights = [np.load(each.folder / f"weights{rank}.npy") for each, rank in ((plain, 0), (job, 0), (job, 1))]
    assert np.array_equal(*weights) and np.abs(weights[0] - wanted).max() <= ROUNDING, job
    (run,) = job.runs
    assert sorted(path.name for path in run.glob("rank*")) == ["rank0", "rank1"], job
    for rank in range(2):
        events = [json.loads(line) for line in (run / f"rank{rank}" / "events.jsonl").read_text().splitlines()]
        assert {event["rank"] for event in events if event["type"] == "start"} == {rank}
        assert any(event["type"] == "applied" for event in events), job
