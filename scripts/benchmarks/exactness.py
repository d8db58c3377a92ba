"""`bench exactness`: for every case of the tests, at one chunk and in several, how far the gradients are from plain
Paddle's, and which class bsguard said. Prints a table; the exit status is 1 where one differs in silence.

The cases are scripts that know nothing of bsguard (tests/hooks/framework/jobs); ways.py runs them in one process each,
with and without the preload. judge() is what the tests ask too. Depends on numpy only where it compares.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.environ import BUILD, REPO, VENV, job_environment

JOBS = REPO / "tests" / "hooks" / "framework" / "jobs"
WAYS = ("armed", "disarmed", "2", "4", "16", "forward", "backward")  # 16: more than any batch, so chunks of one sample
EXACT = 1e-10  # of the largest gradient, in float64
SINGLE = 1e-5  # likewise, where the job computes in float32
ROUNDING = 1e-14  # likewise: the order of an addition


def distance(a: Any, b: Any) -> float:
    """The largest difference between two results over the largest absolute value of the first (of each array group).

    inf where anything else than a floating-point number differs: a shape, a text, an integer.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return max([distance(a[key], b[key]) for key in a], default=0.0) if list(a) == list(b) else float("inf")
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return float("inf")
        if a and all(one is None or hasattr(one, "dtype") for one in [*a, *b]):
            return _of_arrays(a, b)
        return max([distance(x, y) for x, y in zip(a, b)], default=0.0)
    if hasattr(a, "dtype") and hasattr(b, "dtype"):
        return _of_arrays([a], [b])
    if type(a) is float and type(b) is float:
        return 0.0 if a == b else abs(a - b) / max(abs(a), 1e-300)
    return 0.0 if type(a) is type(b) and a == b else float("inf")


def _of_arrays(a: list, b: list) -> float:
    """Over the largest value of all of them: a gradient that is zero but for rounding is not far from zero."""
    import numpy

    largest, apart = 1e-300, 0.0
    for x, y in zip(a, b):
        if x is None or y is None:
            if x is not y:
                return float("inf")
            continue
        if x.shape != y.shape or x.dtype != y.dtype:
            return float("inf")
        if not x.size:
            continue
        if x.dtype.kind != "f":
            if not numpy.array_equal(x, y):
                return float("inf")
            continue
        finite = numpy.isfinite(x)
        if not numpy.array_equal(finite, numpy.isfinite(y)):
            return float("inf")
        if finite.any():
            largest = max(largest, float(numpy.abs(x[finite]).max()))
            apart = max(apart, float(numpy.abs(x[finite] - y[finite]).max()))
    return apart / largest


def identical(a: Any, b: Any) -> bool:
    """True if both results are equal, bit for bit."""
    return distance(a, b) == 0.0


def classes(said: list[tuple[str, str, str]]) -> list[str]:
    """What bsguard said, shortened: "approximate" or "refused"."""
    return sorted({exactness or kind for kind, exactness, _ in said})


def judge(plain: dict[str, Any], way: str, other: dict[str, Any]) -> tuple[bool, float, str]:
    """(is it right?, distance, what was said) of one case run in one way against the plain run.

    At one chunk (armed, disarmed) nothing may be said and nothing may differ but by the order in which what arrives from
    both sides of a cut is added; in chunks, what differs by more than rounding must have been said, if only by giving
    the user the original exception.
    """
    apart = distance(plain["result"], other["result"])
    said = ",".join(classes(other["said"]))
    if way == "disarmed":
        return apart == 0.0 and not said, apart, said
    if way == "armed":
        return apart <= ROUNDING and not said, apart, said
    bound = SINGLE if _is_single(plain["result"]) else EXACT
    own = other["result"].get("exception", [""])[0] == "MemoryError" and way in ("forward", "backward")
    return apart <= bound or bool(said) or own, apart, said or ("exception" if own else "")


def _is_single(result: dict[str, Any]) -> bool:
    return any("float32" in str(getattr(one, "dtype", "")) for one in result.get("state", []))


def results(script: Path, python: Path, build: Path, preload: bool, ways: str, folder: Path) -> dict[str, Any]:
    """Runs all cases of a script. Raises RuntimeError with what the job printed where it died."""
    out = folder / f"{script.stem}-{preload}.pickle"
    environment = {**job_environment(), "XDG_STATE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    if preload:
        environment["LD_PRELOAD"] = str(build / "libbsguard.so")
    command = [REPO / "scripts" / "simgpu", "--memory", "1GiB", "--", python, JOBS / "ways.py", script, out]
    job = subprocess.run(
        [str(word) for word in [*command, "--ways", ways]],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if job.returncode:
        raise RuntimeError(f"{script.name} ended with status {job.returncode}:\n{job.stderr[-2000:]}")
    return pickle.loads(out.read_bytes())


def table(script: Path, python: Path, build: Path) -> Iterator[dict[str, Any]]:
    """One row for each case and way."""
    with tempfile.TemporaryDirectory(prefix="bsguard-bench-") as folder:
        plain = results(script, python, build, False, "plain", Path(folder))
        guarded = results(script, python, build, True, ",".join(WAYS), Path(folder))
    for case, ways in guarded.items():
        for way, other in ways.items():
            right, apart, said = judge(plain[case]["plain"], way, other)
            yield {"case": case, "way": way, "said": said or "exact", "difference": apart, "right": right}


def run(as_json: bool) -> int:
    """Prints the table; returns the exit status."""
    wrong = rows = 0
    try:
        for row in table(JOBS / "more_cases.py", VENV / "bin" / "python", BUILD):
            rows += 1
            wrong += not row["right"]
            if as_json:
                print(json.dumps({"bench": "exactness", **row, "difference": repr(row["difference"])}), flush=True)
            else:
                mark = "" if row["right"] else "  SILENT"
                print("%-52s %-9s %-12s %.1e%s" % (row["case"], row["way"], row["said"], row["difference"], mark))
    except (RuntimeError, OSError) as error:
        print(f"bench: exactness: {error}", file=sys.stderr)
        return 1
    if not as_json:
        print(f"{rows} rows, {wrong} different in silence")
    return 1 if wrong else 0
