"""`bench job`: what the preload costs a training job that never runs out of memory, as a ratio of step times.

Two processes train the same job, one of them with the preload. They take turns, a step each and never at the same time,
in the order A B B A, so that whatever else the machine does meets both alike. A round gives one ratio of medians, and the
result is the median of the rounds, with the least and the greatest. The first steps are thrown away: in them caches fill,
and bsguard proves and disarms.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from support.environ import BUILD, REPO, VENV, job_environment

WORKER = Path(__file__).resolve().parent / "worker.py"
MODELS = ("mlp", "cnn", "transformer")
MEMORY = "1GiB"  # far more than any of the models takes
WARM_STEPS = 20


class Job:
    """A worker process that waits for orders."""

    def __init__(self, model: str, preload: bool, folder: Path, extra: Optional[Mapping[str, str]] = None) -> None:
        """extra: added to the environment."""
        environment = {**job_environment(), "XDG_STATE_HOME": str(folder), "OMP_NUM_THREADS": "1", **(extra or {})}
        if preload:
            environment["LD_PRELOAD"] = str(BUILD / "libbsguard.so")
        command = [REPO / "scripts" / "simgpu", "--memory", MEMORY, "--", VENV / "bin" / "python", WORKER, model]
        self._errors = tempfile.TemporaryFile("w+", dir=folder)  # noqa: SIM115 - closed with the job
        self._process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def steps(self, count: int) -> list[float]:
        """Runs steps and returns their times in seconds. Raises RuntimeError with what it said where it died."""
        self.order(count)
        return self.answer()

    def order(self, count: int) -> None:
        """Has it begin with so many steps."""
        try:
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer will tell

    def answer(self) -> list[float]:
        """What steps() returns, once they have run."""
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"a job ended with status {self._process.returncode}:\n{self._errors.read()[-2000:]}")
        return json.loads(line)

    def end(self) -> None:
        """Ends the job and waits for it."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def ratios(rounds: int, steps: int, make: Callable[[bool, Path], Any]) -> Iterator[float]:
    """For each round, the median step time with the preload over that without. make: a Job, with the preload or without."""
    with tempfile.TemporaryDirectory(prefix="bsguard-bench-") as folder:
        jobs = []
        try:
            for preload in (False, True):
                jobs.append(make(preload, Path(folder)))
            plain, guarded = jobs
            plain.steps(WARM_STEPS)
            guarded.steps(WARM_STEPS)
            for _ in range(rounds):
                without: list[float] = []
                with_preload: list[float] = []
                for _ in range(steps // 2):
                    without += plain.steps(1)
                    with_preload += guarded.steps(2)
                    without += plain.steps(1)
                yield statistics.median(with_preload) / statistics.median(without)
        finally:
            for job in jobs:
                job.end()


def run(models: list[str], rounds: int, steps: int) -> int:
    """Prints one line of JSON a model; returns the exit status."""
    for model in models:
        try:
            found = list(ratios(rounds, steps, lambda preload, folder, name=model: Job(name, preload, folder)))
        except (RuntimeError, OSError) as error:
            print(f"bench: job {model}: {error}", file=sys.stderr)
            return 1
        result = {
            "bench": "job",
            "model": model,
            "ratio": round(statistics.median(found), 4),
            "ratio_min": round(min(found), 4),
            "ratio_max": round(max(found), 4),
        }
        print(json.dumps(result), flush=True)
    return 0
