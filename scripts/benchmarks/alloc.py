"""`bench alloc`: what one allocation and free cost with the hooks and without, from the C benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Optional

from support.environ import BUILD, job_environment


def find() -> Optional[Path]:
    """The benchmark program; None where the build has none."""
    found = sorted(path for path in BUILD.glob("tests/**/bench_alloc") if path.is_file())
    return found[0] if found else None


def run(options: list[str]) -> int:
    """Runs the benchmark with its own options, its output on our screen; returns its exit status."""
    program = find()
    if program is None:
        print(f"bench: alloc: no bench_alloc under {BUILD}/tests: run scripts/setup", file=sys.stderr)
        return 1
    return subprocess.call([str(program), *options], env=job_environment())
