"""`bench job`: what the preload costs a training job that never runs out of memory, as a ratio of step times.

Two processes train the same job, one of them with the preload. They take turns, a step each and never at the same time,
in the order A B B A, so that whatever else the machine does meets both alike. A round gives one ratio of medians, and the
result is the median of the rounds, with the least and the greatest. The first steps are thrown away: in them caches fill,
and bsguard proves and disarms.

Two processes that are the same differ by two percent: in one of them glibc gives memory back to the system and takes it
anew, thousands of pages a step, as chance has it. It is told to keep it, in all processes alike, and the rounds are run in
several sets of new ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from demonstration import options
from support.environ import BUILD, REPO, VENV, job_environment

WORKER = Path(__file__).resolve().parent / "worker.py"
CALL_WORKER = WORKER.with_name("call_worker.py")
CALLS = 300  # steps at a time
MODELS = ("mlp", "cnn", "transformer")
MEMORY = "1GiB"  # far more than any of the models takes
WARM_STEPS = 20
KEPT = {  # bytes; see above. The last one takes host memory in large pieces
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "MALLOC_TOP_PAD_": str(1 << 28),
}


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "job",
        allow_abbrev=False,
        help="step time with the preload over that without, for jobs that never run out of memory",
    )
    add_measure(parser)
    parser.add_argument(
        "--calls",
        action="store_true",
        help="instead: microseconds added to each call of a tiny network",
    )

    def chosen(asked: Any) -> int:
        if asked.calls:
            return calls(asked.sets * asked.rounds)
        return run(asked.models or list(MODELS), asked.sets, asked.rounds, asked.steps)

    parser.set_defaults(run=chosen)


def add_measure(parser: Any) -> None:
    """Adds which models are measured, and how long."""
    parser.add_argument(
        "models",
        nargs="*",
        type=one_of(MODELS, "model"),
        metavar="MODEL",
        help=f"of {', '.join(MODELS)} (default: all)",
    )
    parser.add_argument(
        "--sets",
        type=options.count,
        default=3,
        metavar="N",
        help="how often with new processes, which are never quite alike (default: 3)",
    )
    parser.add_argument("--rounds", type=options.count, default=5, metavar="N", help="rounds of a set (default: 5)")
    parser.add_argument("--steps", type=two, default=20, metavar="N", help="steps a round, at least 2 (default: 20)")


def one_of(known: Sequence[str], what: str) -> Callable[[str], str]:
    """A parser of one of these words. `what` says what they are."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}; there are {', '.join(known)}")
        return text

    return parse


def two(text: str) -> int:
    """A count of at least 2."""
    found = options.count(text)
    if found < 2:
        raise argparse.ArgumentTypeError("a round needs at least 2")
    return found


def command_of(model: str) -> list[object]:
    """The command of a worker on the simulated GPU."""
    return [REPO / "scripts" / "simgpu", "--memory", MEMORY, "--", VENV / "bin" / "python", WORKER, model]


class Job:
    """A worker process that waits for orders."""

    def __init__(
        self, command: Sequence[object], preload: bool, folder: Path, extra: Optional[Mapping[str, str]] = None
    ) -> None:
        """extra: added to the environment."""
        environment = {
            **job_environment(),
            "XDG_STATE_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            **KEPT,
            **(extra or {}),
        }
        if preload:
            environment["LD_PRELOAD"] = str(BUILD / "libbsguard.so")
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
        self.order(str(count))
        return self.answer()

    def order(self, line: str) -> None:
        """Has it begin with what a line says: a number of steps."""
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer will tell

    def answer(self) -> Any:
        """What it answers to an order, once that is done: for a number of steps, what steps() returns."""
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


def measure(sets: int, rounds: int, steps: int, make: Callable[[bool, Path], Any]) -> tuple[list[float], float]:
    """([median step time with the preload over that without, of each round], milliseconds of a step without).

    make: a Job, with the preload or without.
    """
    found: list[float] = []
    plain_steps: list[float] = []
    for _ in range(sets):
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
                    found.append(statistics.median(with_preload) / statistics.median(without))
                    plain_steps += without
            finally:
                for job in jobs:
                    job.end()
    return found, 1e3 * statistics.median(plain_steps)


def run(models: list[str], sets: int, rounds: int, steps: int) -> int:
    """Prints one line of JSON a model; returns the exit status."""
    for model in models:
        try:
            command = command_of(model)
            found, took = measure(
                sets, rounds, steps, lambda preload, folder, words=command: Job(words, preload, folder)
            )
        except (RuntimeError, OSError) as error:
            print(f"bench: job {model}: {error}", file=sys.stderr)
            return 1
        result = {
            "bench": "job",
            "model": model,
            "step_ms": round(took, 2),
            "ratio": round(statistics.median(found), 4),
            "ratio_min": round(min(found), 4),
            "ratio_max": round(max(found), 4),
        }
        print(json.dumps(result), flush=True)
    return 0


def calls(rounds: int) -> int:
    """Prints one line of JSON for steps that are not armed and one for steps that are; returns the exit status.

    Three processes take turns, one without the preload. In microseconds of the processor, so that it matters little what
    else the machine does; the median of the rounds.
    """
    command = [VENV / "bin" / "python", "-W", "ignore", CALL_WORKER]
    driver = {"LD_LIBRARY_PATH": str(BUILD / "simgpu" / "lib"), "SIMGPU_MEMORY": str(1 << 36)}
    with tempfile.TemporaryDirectory(prefix="bsguard-bench-") as folder:
        jobs = {}
        try:
            for kind, arm in (("plain", "auto"), ("disarmed", "auto"), ("armed", "always")):
                jobs[kind] = Job(command, kind != "plain", Path(folder), {**driver, "BSGUARD_ARM": arm})
                jobs[kind].steps(CALLS)
            found = {kind: [] for kind in jobs}
            for _ in range(rounds):
                for kind, one in jobs.items():
                    found[kind].append(one.steps(CALLS))
        except (RuntimeError, OSError) as error:
            print(f"bench: job: {error}", file=sys.stderr)
            return 1
        finally:
            for one in jobs.values():
                one.end()
    took = {kind: [statistics.median(part) for part in zip(*rows)] for kind, rows in found.items()}
    for kind in ("disarmed", "armed"):
        row = {"bench": "job", "calls": kind}
        for name, mine, plain in zip(("call", "backward", "step"), took[kind], took["plain"]):
            row[f"{name}_added_us"], row[f"{name}_plain_us"] = round(mine - plain, 1), round(plain, 1)
        print(json.dumps(row), flush=True)
    return 0
