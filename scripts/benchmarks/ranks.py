"""`bench ranks`: what the preload costs a data-parallel job that never runs out of memory, as a ratio of step times: steps a
second with the preload over those without. As `bench job`, but each of the two jobs has several ranks, on a simulated GPU
each, which the same order sets off together.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
from pathlib import Path

from benchmarks import job


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
                self._jobs.append(job.Job(model, preload, folder, {**common, **own}))
        except BaseException:
            self.end()
            raise

    def steps(self, count: int) -> list[float]:
        """Runs steps and returns the times of rank 0 in seconds. Raises RuntimeError with what a rank said that died."""
        for one in self._jobs:
            one.order(count)
        times = [one.answer() for one in self._jobs]
        return times[0]

    def end(self) -> None:
        """Ends all ranks and waits for them."""
        for one in self._jobs:
            one.end()


def run(models: list[str], rounds: int, steps: int, count: int, arm: str) -> int:
    """Prints one line of JSON a model; returns the exit status."""
    for model in models:
        try:
            found = list(
                job.ratios(rounds, steps, lambda preload, folder, name=model: Ranks(name, preload, folder, count, arm))
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
            "speed": round(statistics.median(speeds), 4),
            "speed_min": round(min(speeds), 4),
            "speed_max": round(max(speeds), 4),
        }
        print(json.dumps(result), flush=True)
    return 0
