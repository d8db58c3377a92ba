"""`bench optimizers`: every optimizer that Paddle ships; each allocation of its first two steps fails, one after another.

The job (tests/hooks/framework/jobs/optimizers.py) compares the weights after three steps with those of a run in which
nothing failed. Paddle's cache is switched off, so that every allocation of a step is one. A step that cannot be resumed
without doubt must raise: then it is counted as raised, never as different.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.job import one_of
from benchmarks.sweep import AMPLE, NO_CACHE
from benchmarks.verdict import raised
from benchmarks.warm import Warm
from support.environ import BUILD, REPO, VENV, VENV_26

JOB = REPO / "tests" / "hooks" / "framework" / "jobs" / "optimizers.py"
WATCHDOG = 600  # seconds; an optimizer takes about ten
OPTIMIZERS = (
    "SGD",
    "Momentum",
    "Adagrad",
    "Adadelta",
    "Adam",
    "AdamW",
    "Adamax",
    "Lamb",
    "NAdam",
    "RAdam",
    "ASGD",
    "Rprop",
    "LBFGS",
    "RMSProp",
)
WAYS = ((), ("clip",), ("decay",), ("groups",))
# One operator for all parameters (use_multi_tensor), and through paddle.amp.GradScaler.
MORE_WAYS = {
    "Adam": (("fused",), ("scaler",), ("minimize",), ("clip", "scaler")),
    "Momentum": (("fused",), ("fused", "groups")),
}
# What cannot be run, with or without bsguard, and why.
LEFT_OUT = {"RMSProp": "its kernel writes to its inputs, which the simulated GPU's operators do not support"}


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "optimizers", allow_abbrev=False, help="every optimizer of Paddle's: each allocation of its first steps fails"
    )
    parser.add_argument(
        "names",
        nargs="*",
        type=one_of(OPTIMIZERS, "optimizer"),
        metavar="NAME",
        help=f"of {', '.join(OPTIMIZERS)} (default: all)",
    )
    parser.add_argument(
        "--paddle", choices=("3.3.1", "2.6.2"), default="3.3.1", metavar="VERSION", help="3.3.1 (the default) or 2.6.2"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON a row instead of a table")

    def chosen(asked: Any) -> int:
        return run(asked.names or list(OPTIMIZERS), asked.json, VENV if asked.paddle == "3.3.1" else VENV_26)

    parser.set_defaults(run=chosen)


def results(names: list[str], ways: tuple, folder: Path, python: Path, build: Path) -> Iterator[dict[str, Any]]:
    """One row for each optimizer and way: what the job printed, or `why` it did not run."""
    with Warm(python, build, True, NO_CACHE) as warm:
        for name in names:
            for way in (*ways, *MORE_WAYS.get(name, ())):
                row: dict[str, Any] = {"bench": "optimizers", "optimizer": name, "options": list(way)}
                if name in LEFT_OUT:
                    yield {**row, "why": LEFT_OUT[name]}
                    break
                environment = {"SIMGPU_MEMORY": AMPLE}
                ended = warm.run(folder / "-".join([name, *way]), JOB, [name, *way], environment, WATCHDOG)
                lines = ended.out.strip().splitlines()
                if ended.hung:
                    yield {**row, "why": f"did not end within {WATCHDOG} s", "wrong": True}
                elif ended.code == 0 and lines:
                    row.update(json.loads(lines[-1]))
                    yield {**row, "wrong": bool(row.get("different"))}
                else:
                    missing = f"has no attribute '{name}'" in ended.err  # Paddle 2.6 has fewer of them
                    text = "this Paddle has none" if missing else raised(ended.err, True).splitlines()[:1]
                    yield {**row, "why": text if missing else "".join(text), "wrong": not missing}
                    if missing:
                        break


def run(names: list[str], as_json: bool, venv: Path) -> int:
    """Prints the table, or one line of JSON a row, with the Paddle of this environment; returns the exit status: 1 where
    one is different."""
    wrong = 0
    if not as_json:
        print("%-10s %-8s %11s %7s %7s %10s" % ("optimizer", "options", "allocations", "equal", "raised", "different"))
    with tempfile.TemporaryDirectory(prefix="bsguard-bench-") as folder:
        try:
            for row in results(names, WAYS, Path(folder), venv / "bin" / "python", BUILD):
                wrong += bool(row.get("wrong"))
                if as_json:
                    print(json.dumps(row), flush=True)
                    continue
                head = "%-10s %-8s" % (row["optimizer"], " ".join(row["options"]))
                if "why" in row:
                    print(f"{head} {row['why']}", flush=True)
                    continue
                counts = sum(row["allocations"]), row["equal"], len(row["raised"]), len(row["different"])
                print(f"{head} %11d %7d %7d %10d" % counts, flush=True)
        except (RuntimeError, OSError) as error:
            print(f"bench: optimizers: {error}", file=sys.stderr)
            return 1
    return 1 if wrong else 0
