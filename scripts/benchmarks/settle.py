"""`bench settle`: how many OOMs until a job has settled, and in its second run; and what variable lengths with rare spikes
cost against an oracle.

Real jobs on the simulated GPU. The first rows: a batch of one shape, so many times too large for the device. The last: each
step has a length of its own, lognormal, one in so many eight times as long; the device has room for nearly all of them.
The oracle never runs out of memory, and accumulates by hand over the fewest parts that the device would have room for, by
the peaks that Paddle measured. Both take turns, a step each; what failed attempts and trials take is in the ratio.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.job import Job
from demonstration import options
from support.environ import REPO, VENV

WORKER = Path(__file__).resolve().parent / "settle_worker.py"
BATCH = 64  # samples; as in settle_worker.py
TIMES = (1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16)
LENGTH = 96  # tokens, of the rows of one shape
STEPS = 12
AMPLE = 2 << 30  # bytes
MEDIAN, SIGMA, LONGER, RARE = 64, 0.4, 8, 0.01  # of the lengths; spikes are LONGER times as long, RARE of all
FITS = 0.97  # of the ordinary lengths


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "settle", allow_abbrev=False, help="OOMs until a job has settled; variable lengths against an oracle"
    )
    parser.add_argument(
        "--steps", type=options.count, default=300, metavar="N", help="of variable length (default: 300)"
    )
    parser.add_argument("--seed", type=options.count, default=1, metavar="N", help="of the lengths (default: 1)")
    parser.set_defaults(run=lambda asked: run(asked.steps, asked.seed))


class Settling(Job):
    """A settle_worker.py on a device of `memory` bytes."""

    def __init__(
        self, folder: Path, memory: int, preload: bool, lengths: Sequence[int], chunks: Sequence[int] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            REPO / "scripts" / "simgpu",
            "--memory",
            memory,
            "--",
            VENV / "bin" / "python",
            "-W",
            "ignore",
            WORKER,
        ]
        command += [json.dumps(list(lengths)), *(["--chunks", json.dumps(list(chunks))] if chunks else [])]
        super().__init__(command, preload, folder)
        self._folder = folder

    def events(self) -> list[dict[str, Any]]:
        """What bsguard wrote down, of the newest run in this folder."""
        runs = sorted((self._folder / "bsguard").glob("*/events.jsonl"))
        return [json.loads(line) for line in runs[-1].read_text().splitlines()]


def _once(*arguments: Any, steps: int = STEPS) -> tuple[list[list[float]], list[dict[str, Any]]]:
    """([seconds, peak] of each step, events) of one run."""
    job = Settling(*arguments)
    try:
        found = job.steps(steps)
        return found, job.events() if arguments[2] else []
    finally:
        job.end()


def settle(folder: Path) -> int:
    """Prints a row for each of TIMES; returns how many are worse than promised."""
    whole = max(peak for _, peak in _once(folder / "whole", AMPLE, False, [LENGTH])[0])
    bad = 0
    for times in TIMES:
        own = folder / str(times)
        runs = [_once(own, int(whole / times), True, [LENGTH])[1] for _ in range(2)]
        ooms = [sum(event["type"] == "oom" for event in events) for events in runs]
        chunks = [event["accumulation_steps"] for event in runs[0] if event["type"] == "step"][-1]
        row = {
            "bench": "settle",
            "times_too_large": times,
            "ooms": ooms[0],
            "second_run_ooms": ooms[1],
            "chunks": chunks,
        }
        print(json.dumps(row), flush=True)
        bad += ooms[0] > 2 or ooms[1] > 0
    return bad


def lengths_of(steps: int, seed: int) -> list[int]:
    """Lognormal lengths with rare spikes, in tokens."""
    choice = random.Random(seed)
    drawn = [max(8, int(MEDIAN * math.exp(SIGMA * choice.gauss(0, 1)))) for _ in range(steps)]
    return [length * LONGER if choice.random() < RARE else length for length in drawn]


def variable(folder: Path, steps: int, seed: int) -> int:
    """Prints the row of variable lengths; 1 where it is worse than promised."""
    lengths = lengths_of(steps, seed)
    short, long = 32, 256
    (_, low), (_, high) = _once(folder / "peaks", AMPLE, False, [short, short, long], steps=3)[0][1:]
    per_token = (high - low) / (long - short) / BATCH
    fixed = low - per_token * short * BATCH
    ordinary = sorted(lengths)[int(FITS * (1 - RARE) * steps)]
    memory = int(fixed + per_token * ordinary * BATCH)

    def best(length: int) -> int:
        return next(k for k in range(1, BATCH + 1) if fixed + per_token * length * -(-BATCH // k) <= memory)

    plan = [best(length) for length in lengths]
    oracle = Settling(folder / "oracle", AMPLE, False, lengths, plan)
    guarded = Settling(folder / "guarded", memory, True, lengths)
    try:
        seconds = [0.0, 0.0]
        for step in range(steps):
            order = (oracle, guarded) if step % 2 else (guarded, oracle)
            for job in order:
                seconds[job is guarded] += job.steps(1)[0][0]
        events = guarded.events()
    finally:
        oracle.end()
        guarded.end()
    ran = [event["accumulation_steps"] for event in events if event["type"] == "step"]
    row = {
        "bench": "settle",
        "lengths": f"lognormal({MEDIAN}, {SIGMA})",
        "steps": steps,
        "ooms": sum(event["type"] == "oom" for event in events),
        "too_large": sum(k > 1 for k in plan),
        "split": sum(k > 1 for k in ran),
        # The policy leaves a tenth of the device for what an allocator cannot use; below that nothing is split for fear.
        "needlessly_split": sum(
            k > 1 and fixed + per_token * length * BATCH < 0.9 * memory for k, length in zip(ran, lengths)
        ),
        "of_the_oracle": round(seconds[0] / seconds[1], 3),
    }
    print(json.dumps(row), flush=True)
    return int(row["of_the_oracle"] < 0.9)


def run(steps: int, seed: int) -> int:
    """Prints one line of JSON a row; returns the exit status: 1 where one is worse than promised."""
    try:
        with tempfile.TemporaryDirectory(prefix="bsguard-bench-") as folder:
            bad = settle(Path(folder))
            bad += variable(Path(folder), steps, seed)
    except (RuntimeError, OSError, ValueError) as error:
        print(f"bench: settle: {error}", file=sys.stderr)
        return 1
    return 1 if bad else 0
