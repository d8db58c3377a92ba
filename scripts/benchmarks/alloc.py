"""`bench alloc`: what one allocation and free cost with the hooks and without, from the C benchmark.

The driver under it does nothing, so that the difference is that of the hooks alone; see tests/hooks/cuda/bench_alloc.c.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

from demonstration import options
from support.environ import BUILD, job_environment


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "alloc", allow_abbrev=False, help="nanoseconds that the hooks add to one allocation and free at the driver"
    )
    parser.add_argument("--rounds", type=options.count, default=7, metavar="N", help="pairs of runs (default: 7)")
    parser.set_defaults(run=lambda asked: run(asked.rounds))


def find() -> Optional[Path]:
    """The benchmark program; None where the build has none."""
    found = sorted(path for path in BUILD.glob("tests/**/bench_alloc") if path.is_file())
    return found[0] if found else None


def run(rounds: int) -> int:
    """Runs the benchmark, its output on our screen; returns its exit status."""
    program = find()
    if program is None:
        print(f"bench: alloc: no bench_alloc under {BUILD}/tests: run scripts/setup", file=sys.stderr)
        return 1
    command = [program, BUILD / "libbsguard.so", BUILD / "tests" / "null", str(rounds)]
    return subprocess.call([str(word) for word in command], env=job_environment())
