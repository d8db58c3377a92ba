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
SCRIPTS = ("transparent", "more_cases", "generated")
WAYS = (
    "armed",
    "disarmed",
    "2",
    "3",
    "4",
    "16",
    "forward",
    "backward",
)  # 16: more than most batches, so single samples
SPLIT = WAYS[2:]
SMALL_DISARMED = 2 << 10  # bytes: what an earlier case leaves behind comes and goes
SMALL_ARMED = 16 << 10  # bytes
# Every tensor has device memory of its own, and gives it back at once: the driver's peak is the framework's.
UNCACHED = {"FLAGS_auto_growth_chunk_size_in_mb": "0", "FLAGS_free_idle_chunk": "1"}
EXACT = 1e-10  # of the largest gradient, in float64
SINGLE = 1e-5  # likewise, where the job computes in float32
ROUNDING = 1e-14  # likewise: the order of an addition

# Paddle refuses a saved output that was changed in place. The user's copy may be: there is no gradient to compare with.
RIGHT_INSTEAD_OF_REFUSED = {"output_changed_in_place", "output_assigned_in_place"}
# What of a case may differ in chunks beside the gradient of the whole batch: (part of the result, ways).
APART_ON_PURPOSE = {
    "prints_in_forward": ("seen", SPLIT),  # a print in a forward is printed for each chunk
    "parameter_hook": ("seen", ("backward",)),  # what fired in a backward that ran out of memory fires once more
    "hook_is_removed": ("seen", ("backward",)),
    "hook_raises": ("gradients", SPLIT),  # what was accumulated before the exception is the order's, not ours
    "hook_interrupts": ("gradients", SPLIT),
    "own_backward_that_raises": ("gradients", SPLIT),
}


def add(kinds: Any) -> None:
    """Adds this benchmark's arguments."""
    parser = kinds.add_parser(
        "exactness", allow_abbrev=False, help="gradients in chunks against plain Paddle's, and the class said, by case"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON a row instead of a table")
    parser.set_defaults(run=lambda asked: run(asked.json))


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


def judge(case: str, plain: dict[str, Any], way: str, other: dict[str, Any]) -> tuple[bool, float, str]:
    """(is it right?, distance, what was said) of one case run in one way against the plain run.

    At one chunk (armed, disarmed) nothing may be said and nothing may differ but by the order in which what arrives from
    both sides of a cut is added; in chunks, what differs by more than rounding must have been said, if only by giving
    the user the original exception.
    """
    mine, theirs = other["result"], plain["result"]
    said = ",".join(classes(other["said"]))
    if case in RIGHT_INSTEAD_OF_REFUSED and way != "disarmed":
        return "exception" in theirs and "exception" not in mine, 0.0, said
    part, ways = APART_ON_PURPOSE.get(case, ("", ()))
    if way in ways:
        mine, theirs = ({name: one[name] for name in one if name != part} for one in (mine, theirs))
    apart = distance(theirs, mine)
    if way == "disarmed":
        return apart == 0.0 and not said, apart, said
    if way == "armed":
        return apart <= ROUNDING and not said, apart, said
    bound = SINGLE if _is_single(theirs) else EXACT
    # Out of memory, and the user has the original exception.
    own = mine.get("exception", [""])[0] == "MemoryError" and way in ("forward", "backward", "memory")
    return apart <= bound or bool(said) or own, apart, said or ("exception" if own else "")


def check_memory(ways: dict[str, Any]) -> None:
    """Asserts the peaks of a case: disarmed plain Paddle's; armed three times the outputs more, and gradients' copies.

    What is small whatever the batch is has a bound of its own: single numbers, statistics of BatchNorm, an input that
    needs a gradient.
    """
    plain, armed = ways["plain"]["peak"], ways["armed"]
    assert ways["disarmed"]["peak"] <= plain + SMALL_DISARMED
    assert armed["peak"] <= plain + 3 * armed["outputs"] + armed["copies"] + SMALL_ARMED


def _is_single(result: dict[str, Any]) -> bool:
    return any("float32" in str(getattr(one, "dtype", "")) for one in result.get("state", []))


def results(script: Path, python: Path, build: Path, preload: bool, ways: str, folder: Path) -> dict[str, Any]:
    """Runs all cases of a script. Raises RuntimeError with what the job printed where it died."""
    out = folder / f"{script.stem}-{preload}.pickle"
    environment = {**job_environment(), "XDG_STATE_HOME": str(folder), "OMP_NUM_THREADS": "1", **UNCACHED}
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


def table(name: str, python: Path, build: Path) -> Iterator[dict[str, Any]]:
    """One row for each case and way of one of SCRIPTS."""
    script = JOBS / f"{name}.py"
    with tempfile.TemporaryDirectory(prefix="bsguard-bench-") as folder:
        plain = results(script, python, build, False, "plain", Path(folder))
        guarded = results(script, python, build, True, ",".join(WAYS), Path(folder))
    for case, ways in guarded.items():
        for way, other in ways.items():
            right, apart, said = judge(case, plain[case]["plain"], way, other)
            label = f"seed {case}" if name == "generated" else case
            yield {"case": label, "way": way, "said": said or "exact", "difference": apart, "right": right}


def run(as_json: bool) -> int:
    """Prints the table; returns the exit status."""
    wrong = rows = 0
    sums: dict[str, int] = {}
    try:
        for name in SCRIPTS:
            for row in table(name, VENV / "bin" / "python", BUILD):
                rows += 1
                wrong += not row["right"]
                sums[row["said"]] = sums.get(row["said"], 0) + 1
                if as_json:
                    print(json.dumps({"bench": "exactness", **row, "difference": repr(row["difference"])}), flush=True)
                else:
                    mark = "" if row["right"] else "  SILENT"
                    words = (row["case"], row["way"], row["said"], row["difference"], mark)
                    print("%-58s %-9s %-20s %.1e%s" % words, flush=True)
    except (RuntimeError, OSError) as error:
        print(f"bench: exactness: {error}", file=sys.stderr)
        return 1
    if not as_json:
        print(f"{rows} rows: " + ", ".join(f"{count} {said}" for said, count in sorted(sums.items())))
        print(f"{wrong} different in silence")
    return 1 if wrong else 0
