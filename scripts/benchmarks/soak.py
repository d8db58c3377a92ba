"""`bench soak`: random jobs with random memory and random faults, by seed. None hangs, none differs in silence.

A case is a job (soak_job.py), run once undisturbed and without the preload, and once with it on a smaller device, with a
schedule of failing allocations, or both. What is right is verdict.py's. `--first SEED --cases 1` runs one case again.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import verdict
from benchmarks.sweep import AMPLE, NO_CACHE, OUT, add_output
from benchmarks.warm import Warm
from demonstration import options
from support.environ import BUILD, VENV

JOB = Path(__file__).resolve().parent / "soak_job.py"
WATCHDOG = 120  # seconds; a case takes one or two
SHARE = (0.5, 1.0)  # of what a job takes beyond what it holds: how much of it is there
SKIPPED = "skipped"  # the job does not run on the simulated GPU at all
_STATS = re.compile(r"(\d+) allocation calls, .* peak (\d+) of \d+ bytes, (\d+) bytes in")


@dataclass
class Case:
    """What a seed did to its job, and what came of it."""

    seed: int
    environment: dict[str, Any]
    cache: bool
    found: verdict.Verdict


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "soak", allow_abbrev=False, help="random jobs, memory and faults by seed: the same question"
    )
    parser.add_argument("--cases", type=options.count, default=100, metavar="N", help="seeds (default: 100)")
    parser.add_argument("--first", type=options.count, default=1, metavar="SEED", help="the first of them (default: 1)")
    add_output(parser)
    parser.set_defaults(run=lambda asked: run(asked.first, asked.cases, asked.jobs, asked.json, asked.keep))


def disturbance(choice: random.Random, calls: int, peak: int, held: int) -> dict[str, Any]:
    """Memory and faults for a job that makes so many allocation calls, peaks at so many bytes and holds so many of them
    at its end.

    What is held (weights, gradients, moments) no chunk makes less: below it every case dies, and teaches nothing. Most of
    the way from there to the peak a job can be saved.
    """
    kind = choice.choice(("memory", "faults", "both"))
    environment: dict[str, Any] = {"SIMGPU_MEMORY": AMPLE, "BSGUARD_ARM": choice.choice(("auto", "always", "always"))}
    if kind != "faults":
        environment["SIMGPU_MEMORY"] = max(512, int(held + (peak - held) * choice.uniform(*SHARE)))
    if kind != "memory":
        faults = [(choice.randint(1, calls), choice.choice((1, 3, 4, 4, 5, 8))) for _ in range(choice.randint(1, 4))]
        environment["SIMGPU_FAIL_AT"] = ",".join(f"{first}:{count}" for first, count in sorted(faults))
    return environment


class Soak:
    """Processes that have Paddle imported, and the cases that run in them."""

    def __init__(self, folder: Path, python: Path, build: Path) -> None:
        self._folder, self._stack = folder, ExitStack()
        flags = {True: {}, False: NO_CACHE}
        self._warm = {
            (preload, cache): self._stack.enter_context(Warm(python, build, preload, flags[cache]))
            for preload in (False, True)
            for cache in (False, True)
        }

    def __enter__(self) -> Soak:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def case(self, seed: int) -> Case:
        """Runs one seed; what it left is kept where it is a fault."""
        choice = random.Random(seed)
        cache = choice.random() < 0.5
        folder = self._folder / str(seed)
        started = {"SIMGPU_MEMORY": AMPLE, "SIMGPU_STATS": 1}
        plain = self._warm[False, cache].run(folder / "plain", JOB, [seed, OUT], started, WATCHDOG)
        measured = _STATS.search(plain.err)
        if plain.code or not measured:
            found = verdict.Verdict(SKIPPED, why=f"undisturbed: status {plain.code}, {verdict.raised(plain.err, True)}")
            return Case(seed, started, cache, found)
        calls, peak, held = map(int, measured.groups())
        if cache:  # at its end the job still has what its cache keeps
            bare = _STATS.search(self._warm[False, False].run(folder / "bare", JOB, [seed, OUT], started, WATCHDOG).err)
            held = int(bare.group(3)) if bare else 0
        environment = disturbance(choice, calls, peak, held)
        ended = self._warm[True, cache].run(folder / "guarded", JOB, [seed, OUT], environment, WATCHDOG)
        found = verdict.judge(ended, ended.folder / OUT, verdict.arrays(plain.folder / OUT), None)
        if not found.fault:
            shutil.rmtree(folder)
        return Case(seed, environment, cache, found)


def results(first: int, cases: int, jobs: int, folder: Path, python: Path, build: Path) -> Iterator[Case]:
    """The cases of seeds first to first + cases - 1, as they come."""
    seeds, done, lock = iter(range(first, first + cases)), [], threading.Condition()

    def work() -> None:
        try:
            with Soak(folder, python, build) as soak:
                while True:
                    with lock:
                        seed = next(seeds, None)
                    if seed is None:
                        return
                    case = soak.case(seed)
                    with lock:
                        done.append(case)
                        lock.notify()
        except BaseException as error:  # the main thread raises it
            with lock:
                done.append(error)
                lock.notify()

    for _ in range(min(jobs, cases)):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(cases):
        with lock:
            lock.wait_for(lambda: done)
            one = done.pop(0)
        if isinstance(one, BaseException):
            raise one
        yield one


def run(first: int, cases: int, jobs: int, as_json: bool, keep: Path | None) -> int:
    """Prints a line for each fault and the sums, or one line of JSON a case; returns the exit status."""
    counts: Counter[str] = Counter()
    faults = 0
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bsguard-bench-")))
        try:
            for case in results(first, cases, jobs, folder, VENV / "bin" / "python", BUILD):
                counts[case.found.outcome] += 1
                faults += case.found.fault
                if as_json:
                    print(json.dumps(as_row(case)), flush=True)
                elif case.found.fault:
                    words = " ".join(f"{name}={value}" for name, value in case.environment.items())
                    print(f"seed {case.seed}: {case.found.outcome}: {case.found.why or case.found.apart}\n    {words}")
        except (RuntimeError, OSError) as error:
            print(f"bench: soak: {error}", file=sys.stderr)
            return 1
    if not as_json:
        parts = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        print(f"{cases} cases from seed {first}: {parts}; {faults} faults")
    return 1 if faults else 0


def as_row(case: Case) -> dict[str, Any]:
    """One case for programs."""
    found = case.found
    return {
        "bench": "soak",
        "seed": case.seed,
        "environment": {name: str(value) for name, value in case.environment.items()},
        "cache": case.cache,
        "outcome": found.outcome,
        "difference": None if found.apart is None else repr(found.apart),
        "said": found.said,
        "why": found.why,
    }
