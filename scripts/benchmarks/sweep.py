"""`bench sweep`: memory runs out at every point of a few jobs; each run must end, and be right.

Two kinds of points. capacity: the device is made smaller in steps of 1 MiB, from the job's whole peak down to what it
holds at its end (weights, gradients, the optimizer's state). Faults: every allocation of the framework (its cache is
switched off, so that each is one driver call) fails, once and again:

    absorbed   one attempt fails: Paddle's own second attempt is granted
    terminal   all four attempts of Paddle's fail, what comes next is granted: a one-off that Paddle gives up on
    again      eight fail: the first retry dies too
    third      twelve

Faults come out of the blue, with memory that would have sufficed, so they run with BSGUARD_ARM=always, and with
BSGUARD_WAIT=0: they look like fragmentation, and are to be split rather than tried whole once more. verdict.py says
what is right. --observe: each point with BSGUARD=observe against the same without the preload.
"""

from __future__ import annotations

import json
import queue
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import verdict
from benchmarks.job import one_of
from benchmarks.warm import Ended, Warm
from demonstration import options
from support.environ import BUILD, REPO, VENV

JOB = Path(__file__).resolve().parent / "sweep_job.py"
MODELS = ("cnn", "transformer", "lstm-ctc", "detector")
FAULTS = {"absorbed": 1, "terminal": 4, "again": 8, "third": 12}
KINDS = ("capacity", *FAULTS)
NO_CACHE = {"FLAGS_free_idle_chunk": "1"}
MIB = 1 << 20
AMPLE = 1 << 30  # bytes; far more than any of the models takes
FAULT_BATCH = 4  # samples: as many allocations as with the whole batch, and quicker
OUT = "out.npz"
TIMEOUT = 120  # seconds; a point takes one or two
_STATS = re.compile(r"(\d+) allocation calls, .* peak (\d+) of \d+ bytes, (\d+) bytes in")


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "sweep",
        allow_abbrev=False,
        help="memory runs out at every point of a few jobs: does each end, and is it right?",
    )
    parser.add_argument(
        "--models", type=_some_of(MODELS), default=list(MODELS), metavar="NAME,...", help="(default: all)"
    )
    parser.add_argument(
        "--kinds", type=_some_of(KINDS), default=list(KINDS), metavar="KIND,...", help=f"of {', '.join(KINDS)}"
    )
    parser.add_argument("--every", type=options.count, default=1, metavar="N", help="only every N-th point")
    parser.add_argument("--observe", action="store_true", help="with BSGUARD=observe, against runs without the preload")
    add_output(parser)

    def chosen(asked: Any) -> int:
        return run(asked.models, asked.kinds, asked.every, asked.observe, asked.jobs, asked.json, asked.keep)

    parser.set_defaults(run=chosen)


def add_output(parser: Any) -> None:
    """Adds how many runs go on at a time, and what is left of them."""
    parser.add_argument("--jobs", type=options.count, default=2, metavar="N", help="runs at a time (default: 2)")
    parser.add_argument(
        "--keep",
        type=lambda text: Path(text).absolute(),
        metavar="FOLDER",
        help="a new folder for what the runs with faults left",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON a run instead of a table")


def _some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A parser of some of these words, separated by commas."""
    parse = one_of(known, "such name")
    return lambda text: [parse(word) for word in text.split(",")]


@dataclass
class Point:
    """One run: `value` is the capacity in bytes, or the number of the allocation that fails first."""

    model: str
    kind: str
    value: int

    @property
    def batch(self) -> int:
        """0: the model's own."""
        return 0 if self.kind == "capacity" else FAULT_BATCH

    @property
    def environment(self) -> dict[str, object]:
        if self.kind == "capacity":
            return {"SIMGPU_MEMORY": self.value}
        faults = f"{self.value}:{FAULTS[self.kind]}"
        return {"SIMGPU_MEMORY": AMPLE, "SIMGPU_FAIL_AT": faults, "BSGUARD_ARM": "always", "BSGUARD_WAIT": 0}

    @property
    def by_hand(self) -> str:
        """The command that runs it alone."""
        environment = dict(self.environment)
        memory = environment.pop("SIMGPU_MEMORY")
        faults = environment.pop("SIMGPU_FAIL_AT", "")
        words = ["LD_PRELOAD=build/libbsguard.so", *(f"{name}={value}" for name, value in environment.items())]
        words += [f"{name}={value}" for name, value in NO_CACHE.items()] if faults else []
        words += ["scripts/simgpu", "--memory", str(memory), *(["--fail-at", faults] if faults else [])]
        job = JOB.relative_to(REPO)
        return " ".join([*words, "--", ".venv/bin/python", str(job), self.model, OUT, str(self.batch)])


@dataclass
class Tally:
    """Points of one model and kind."""

    counts: dict[str, int] = field(default_factory=dict)
    survived_at: list[int] = field(default_factory=list)
    died_at: list[int] = field(default_factory=list)

    def add(self, point: Point, found: verdict.Verdict) -> None:
        self.counts[found.outcome] = self.counts.get(found.outcome, 0) + 1
        if found.outcome in (verdict.EXACT_RUN, verdict.SAID):
            self.survived_at.append(point.value)
        elif found.outcome == verdict.DIED:
            self.died_at.append(point.value)

    @property
    def holes(self) -> list[int]:
        """Values at which it died though a smaller one was enough: only of interest for capacities."""
        return [value for value in self.died_at if self.survived_at and value > min(self.survived_at)]


class Bench:
    """Processes with Paddle imported, started where they are first needed, and what is known of the undisturbed jobs."""

    def __init__(self, folder: Path, python: Path, build: Path) -> None:
        self._folder, self._python, self._build = folder, python, build
        self._stack = ExitStack()
        self._warm: dict[tuple[bool, bool], Warm] = {}
        self._plain: dict[tuple[str, int], tuple[dict[str, Any], str]] = {}
        self._count = 0

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.__exit__(None, None, None)

    def run(self, model: str, batch: int, preload: bool, cache: bool, environment: dict[str, object]) -> Ended:
        """Runs a job. cache: with Paddle's own."""
        key = (preload, cache)
        if key not in self._warm:
            started = Warm(self._python, self._build, preload, {} if cache else NO_CACHE)
            self._warm[key] = self._stack.enter_context(started)
        self._count += 1
        return self._warm[key].run(
            self._folder / str(self._count), JOB, [model, OUT, batch], {"SIMGPU_STATS": 1, **environment}, TIMEOUT
        )

    def measured(self, model: str, batch: int, cache: bool, environment: dict[str, object]) -> tuple[int, int, int]:
        """(allocation calls, peak in bytes, bytes held at the end) of a run that must succeed."""
        ended = self.run(model, batch, bool(environment), cache, {"SIMGPU_MEMORY": AMPLE, **environment})
        found = _STATS.search(ended.err)
        if ended.code or not found:
            raise RuntimeError(f"{model} with memory enough ended with status {ended.code}:\n{ended.err[-2000:]}")
        return int(found.group(1)), int(found.group(2)), int(found.group(3))

    def plain(self, model: str, batch: int) -> tuple[dict[str, Any], str]:
        """(arrays of the undisturbed job, the exception of one that dies), without the preload."""
        key = (model, batch)
        if key not in self._plain:
            good = self.run(model, batch, False, True, {"SIMGPU_MEMORY": AMPLE})
            bad = self.run(model, batch, False, True, {"SIMGPU_MEMORY": AMPLE, "SIMGPU_FAIL_AT": "12:1000000"})
            if good.code or not bad.code:
                raise RuntimeError(f"{model}: undisturbed {good.code}, without memory {bad.code}:\n{good.err[-2000:]}")
            self._plain[key] = (verdict.arrays(good.folder / OUT), verdict.raised(bad.err))
        return self._plain[key]

    def points(self, model: str, kind: str, every: int) -> list[Point]:
        """All points of a kind, or each `every`-th."""
        if kind == "capacity":
            peak = self.measured(model, 0, True, {})[1]
            fixed = self.measured(model, 0, False, {})[2]
            values = range(fixed // MIB + 1, -(-peak // MIB) + 1)
            return [Point(model, kind, value * MIB) for value in reversed(values)][::every]
        calls = self.measured(model, FAULT_BATCH, False, {"BSGUARD_ARM": "always"})[0]
        return [Point(model, kind, value) for value in range(1, calls + 1, every)]

    def guarded(self, point: Point) -> verdict.Verdict:
        """Runs a point and judges it."""
        plain, death = self.plain(point.model, point.batch)
        ended = self.run(point.model, point.batch, True, point.kind == "capacity", point.environment)
        found = verdict.judge(ended, ended.folder / OUT, plain, death)
        if not found.fault:
            shutil.rmtree(ended.folder)
        return found

    def observed(self, point: Point) -> verdict.Verdict:
        """Runs a point without the preload and with one that only observes."""
        cache = point.kind == "capacity"
        plain = self.run(point.model, point.batch, False, cache, point.environment)
        seen = self.run(point.model, point.batch, True, cache, {**point.environment, "BSGUARD": "observe"})
        found = verdict.judge_observed(plain, seen, OUT)
        if not found.fault:
            shutil.rmtree(plain.folder)
            shutil.rmtree(seen.folder)
        return found


def results(
    models: list[str], kinds: list[str], every: int, observe: bool, jobs: int, folder: Path, python: Path, build: Path
) -> Iterator[tuple[Point, verdict.Verdict]]:
    """Every point with its verdict, as they come, from `jobs` processes at a time."""
    todo: queue.Queue = queue.Queue()
    done: queue.Queue = queue.Queue()

    def work(number: int) -> None:
        try:
            with Bench(folder / str(number), python, build) as bench:
                while True:
                    try:
                        point = todo.get_nowait()
                    except queue.Empty:
                        return
                    done.put((point, bench.observed(point) if observe else bench.guarded(point)))
        except BaseException as error:  # the main thread raises it
            done.put(error)

    with Bench(folder / "measure", python, build) as bench:
        for model in models:
            for kind in kinds:
                for point in bench.points(model, kind, every):
                    todo.put(point)
    total = todo.qsize()
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for _ in range(total):
        one = done.get()
        if isinstance(one, BaseException):
            raise one
        yield one
    for thread in threads:
        thread.join()


def run(
    models: list[str], kinds: list[str], every: int, observe: bool, jobs: int, as_json: bool, keep: Path | None
) -> int:
    """Prints the table, or one line of JSON a point; returns the exit status: 1 where one point is a fault."""
    tallies: dict[tuple[str, str], Tally] = {}
    faults = 0
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bsguard-bench-")))
        try:
            for point, found in results(models, kinds, every, observe, jobs, folder, VENV / "bin" / "python", BUILD):
                tallies.setdefault((point.model, point.kind), Tally()).add(point, found)
                faults += found.fault
                if as_json:
                    print(json.dumps(as_row(point, found, observe)), flush=True)
                elif found.fault:
                    print(f"{found.outcome}: {found.why or found.apart}\n    {point.by_hand}", flush=True)
        except (RuntimeError, OSError) as error:
            print(f"bench: sweep: {error}", file=sys.stderr)
            return 1
    if not as_json:
        print_table(tallies)
    return 1 if faults else 0


def as_row(point: Point, found: verdict.Verdict, observe: bool) -> dict[str, Any]:
    """One point for programs. difference: as text, since JSON has no infinity."""
    return {
        "bench": "sweep",
        "mode": "observe" if observe else "guard",
        "model": point.model,
        "kind": point.kind,
        "point": point.value,
        "outcome": found.outcome,
        "difference": None if found.apart is None else repr(found.apart),
        "said": found.said,
        "why": found.why,
        "by_hand": point.by_hand,
    }


def print_table(tallies: dict[tuple[str, str], Tally]) -> None:
    """Points tried, survived and exact, by model and kind."""
    print(
        "%-12s %-9s %7s %9s %7s %6s %6s %7s" % ("model", "kind", "tried", "survived", "exact", "said", "died", "faults")
    )
    for (model, kind), tally in tallies.items():
        count = tally.counts.get
        exact, said, died = count(verdict.EXACT_RUN, 0), count(verdict.SAID, 0), count(verdict.DIED, 0)
        tried = sum(tally.counts.values())
        row = (model, kind, tried, exact + said, exact, said, died, tried - exact - said - died)
        print("%-12s %-9s %7d %9d %7d %6d %6d %7d" % row)
        if kind == "capacity" and tally.survived_at:
            least = min(tally.survived_at) // MIB
            holes = ", ".join(str(value // MIB) for value in sorted(tally.holes)) or "none"
            print(f"{'':12} survives from {least} MiB; dies above that at: {holes}")
