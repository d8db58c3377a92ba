"""`bench rescue --retry`: milliseconds from the exception that says that memory ran out to the start of the next attempt.

One process for each model, under the preload and on the plain CPU (retry_worker.py). What freeing the memory takes is the
device's and left out. Three kinds of failures: `first`, of a boundary that was never split, whose trial (a dozen forwards of a
few samples, once for each layer and kind of input) is told apart; `backward` and `later`, in chunks. busy: the same in
milliseconds of the processor, for a machine that others use.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.environ import BUILD, VENV, job_environment

WORKER = Path(__file__).resolve().parent / "retry_worker.py"
MOST_MS = 100  # at the 95th percentile
PERCENTILE = 95


def _milliseconds(seconds: Sequence[float]) -> float:
    """At the 95th percentile."""
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, len(ordered) * PERCENTILE // 100)], 2)


def measure(model: str, networks: int, folder: Path) -> dict[str, list[list[float]]]:
    """What retry_worker.py prints. Raises RuntimeError with what it said where it died."""
    environment = {
        **job_environment(),
        "LD_PRELOAD": str(BUILD / "libbsguard.so"),
        "LD_LIBRARY_PATH": str(BUILD / "simgpu" / "lib"),
        "SIMGPU_MEMORY": str(1 << 36),
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(folder / "state"),
        "BSGUARD_ARM": "always",
        "BSGUARD_WAIT": "0",
    }
    command = [str(word) for word in (VENV / "bin" / "python", WORKER, model, networks)]
    job = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if job.returncode:
        raise RuntimeError(f"{model} ended with status {job.returncode}:\n{job.stderr[-2000:]}")
    return json.loads(job.stdout.splitlines()[-1])


def run(models: Sequence[str], networks: int) -> int:
    """Prints one line of JSON for each model and kind of failure; returns the exit status: 1 where one takes too long."""
    slow = 0
    for model in models:
        try:
            with tempfile.TemporaryDirectory(prefix="bsguard-bench-") as folder:
                found = measure(model, networks, Path(folder))
        except (RuntimeError, OSError, ValueError) as error:
            print(f"bench: rescue: {error}", file=sys.stderr)
            return 1
        for kind, times in found.items():
            row = {
                "bench": "rescue",
                "retry": kind,
                "model": model,
                "ooms": len(times),
                "p95_ms": _milliseconds([whole - trial - freeing for whole, trial, freeing, _, _ in times]),
                "busy_p95_ms": _milliseconds([busy - trying for _, _, _, busy, trying in times]),
            }
            if kind == "first":
                row["trial_p95_ms"] = _milliseconds([trial for _, trial, _, _, _ in times])
                row["trial_busy_p95_ms"] = _milliseconds([trying for _, _, _, _, trying in times])
            slow += row["p95_ms"] > MOST_MS
            print(json.dumps(row), flush=True)
    return 1 if slow else 0
