"""`bench ranks`: what the preload costs a data-parallel job that never runs out of memory, as a ratio of step times: steps a
second with the preload over those without. As `bench job`, but each of the two jobs has several ranks, on a simulated GPU
each, which the same order sets off together.

`bench ranks --drift N`: N trainings by seed, memory refused on some ranks at some steps: do the weights stay equal?
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import job
from demonstration import options
from support.environ import BUILD, REPO, VENV, job_environment

DRIFT = REPO / "tests" / "hooks" / "framework" / "jobs" / "drift.py"
ROUNDING = 1e-9  # of float64, through four steps
WATCHDOG = 120, 30  # seconds: for the start, and for each case


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "ranks",
        allow_abbrev=False,
        help="steps a second with the preload over those without, for data-parallel jobs that never run out of memory",
    )
    job.add_measure(parser)
    parser.add_argument("--ranks", type=options.count, default=2, metavar="N", help="ranks of each job (default: 2)")
    parser.add_argument(
        "--arm", choices=("auto", "always"), default="auto", help="BSGUARD_ARM of the job (default: auto)"
    )
    parser.add_argument(
        "--drift",
        type=options.count,
        metavar="CASES",
        help="instead: trainings with memory refused on some ranks; do their weights stay equal?",
    )

    def chosen(asked: Any) -> int:
        if asked.drift:
            return drift(asked.drift, asked.ranks)
        return run(asked.models or list(job.MODELS), asked.sets, asked.rounds, asked.steps, asked.ranks, asked.arm)

    parser.set_defaults(run=chosen)


def free_endpoints(count: int) -> list[str]:
    """Addresses of this machine that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Ranks:
    """The ranks of one job, each a worker that waits for orders; to be used as job.Job."""

    def __init__(self, model: str, preload: bool, folder: Path, count: int, arm: str) -> None:
        master, *endpoints = free_endpoints(count + 1)
        common = {
            "PADDLE_MASTER": master,
            "PADDLE_TRAINERS_NUM": str(count),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "SIMGPU_DEVICES": str(count),
            "BSGUARD_ARM": arm,
        }
        self._jobs: list[job.Job] = []
        try:
            for rank, endpoint in enumerate(endpoints):
                own = {"PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": endpoint}
                own["FLAGS_selected_gpus"] = str(rank)
                self._jobs.append(job.Job(job.command_of(model), preload, folder, {**common, **own}))
        except BaseException:
            self.end()
            raise

    def steps(self, count: int) -> list[float]:
        """Runs steps and returns the times of rank 0 in seconds. Raises RuntimeError with what a rank said that died."""
        for one in self._jobs:
            one.order(str(count))
        times = [one.answer() for one in self._jobs]
        return times[0]

    def end(self) -> None:
        """Ends all ranks and waits for them."""
        for one in self._jobs:
            one.end()


def run(models: list[str], sets: int, rounds: int, steps: int, count: int, arm: str) -> int:
    """Prints one line of JSON a model; returns the exit status."""
    for model in models:
        try:
            found, took = job.measure(
                sets, rounds, steps, lambda preload, folder, name=model: Ranks(name, preload, folder, count, arm)
            )
        except (RuntimeError, OSError) as error:
            print(f"bench: ranks {model}: {error}", file=sys.stderr)
            return 1
        speeds = [1 / ratio for ratio in found]
        result = {
            "bench": "ranks",
            "model": model,
            "ranks": count,
            "arm": arm,
            "step_ms": round(took, 2),
            "speed": round(statistics.median(speeds), 4),
            "speed_min": round(min(speeds), 4),
            "speed_max": round(max(speeds), 4),
        }
        print(json.dumps(result), flush=True)
    return 0


def _start(rank: int, endpoints: list[str], common: dict[str, str], folder: Path, count: int) -> subprocess.Popen:
    own = {"PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": endpoints[rank], "FLAGS_selected_gpus": str(rank)}
    simgpu = [REPO / "scripts" / "simgpu", "--memory", "256MiB", "--devices", str(len(endpoints)), "--"]
    command = [str(word) for word in [*simgpu, VENV / "bin" / "python", DRIFT, "0", str(count)]]
    with (folder / f"out{rank}").open("w") as out, (folder / f"err{rank}").open("w") as err:
        return subprocess.Popen(
            command, cwd=folder, env={**common, **own}, stdout=out, stderr=err, start_new_session=True
        )


def drift(cases: int, count: int) -> int:
    """Prints one line of JSON; returns the exit status: 1 where the ranks drifted apart, died or did not end."""
    master, *endpoints = free_endpoints(count + 1)
    row: dict[str, object] = {"bench": "ranks", "drift": cases, "ranks": count, "unequal": [], "worst": 0.0, "hit": {}}
    processes: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory(prefix="bsguard-bench-") as name:
        folder = Path(name)
        common = {
            **job_environment(),
            "LD_PRELOAD": str(BUILD / "libbsguard.so"),
            "SIMGPU_BUILD": str(BUILD / "simgpu"),
            "XDG_STATE_HOME": str(folder / "state"),
            "BSGUARD_ARM": "always",
            "OMP_NUM_THREADS": "1",
            "PADDLE_DISTRI_BACKEND": "xccl",
            "PADDLE_XCCL_BACKEND": "gpu",
            "PADDLE_MASTER": master,
            "PADDLE_TRAINERS_NUM": str(count),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        }
        try:
            for rank in range(count):
                processes.append(_start(rank, endpoints, common, folder, cases))
            for rank, process in enumerate(processes):
                code = process.wait(WATCHDOG[0] + WATCHDOG[1] * cases)
                lines = (folder / f"out{rank}").read_text().splitlines()
                if code != 0 or not lines:
                    said = (folder / f"err{rank}").read_text(errors="replace").strip().splitlines()
                    row.setdefault("why", f"rank {rank} ended with {code}: {said[-1] if said else ''}")
                    continue
                told = json.loads(lines[-1])
                row["unequal"] = sorted({*row["unequal"], *told["unequal"]})
                row["worst"] = max(row["worst"], told["worst"])
                row["hit"] = {phase: row["hit"].get(phase, 0) + times for phase, times in told["hit"].items()}
        except subprocess.TimeoutExpired:
            row["why"] = "the ranks did not end"
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    print(json.dumps(row), flush=True)
    return 1 if "why" in row or row["unequal"] or row["worst"] > ROUNDING else 0
