"""What came of a run that was meant to run out of memory: the judgement of `bench sweep` and `bench soak`.

A run may end as the undisturbed one did, to rounding; or differ and have said its class; or die as it would have without
bsguard, with a report. Anything else is a fault: a difference in silence, another exception, no report, no end. Pure but
for reading the run's files. Depends on numpy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from benchmarks.exactness import EXACT, distance
from benchmarks.warm import Ended

EXACT_RUN, SAID, DIED = "exact", "said", "died"
SILENT, ODD, NO_REPORT, HUNG = "silent", "odd", "no-report", "hung"
FAULTS = (SILENT, ODD, NO_REPORT, HUNG)

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")
_SIZE = re.compile(r"\d+(?:\.\d+)?\s?[kKMG]?i?B\b")
_LOGGED = re.compile(r"^[WEIF]\d{4} \d\d:\d\d:\d\d")
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)(:|$)")
_OOM = re.compile(r"(MemoryError|OSError):.*Out of memory error on gpu", re.DOTALL)
_OURS = ("bsguard: ", "simgpu: ")


@dataclass
class Verdict:
    """outcome: one of the words above. apart: largest difference over the largest value; None where it died."""

    outcome: str
    apart: Optional[float] = None
    said: str = ""
    why: str = ""

    @property
    def fault(self) -> bool:
        return self.outcome in FAULTS


def raised(err: str, numbers: bool = False) -> str:
    """The exception that Python printed last, class and text, less Paddle's C++ stack; numbers: as they are, not only
    that there is one."""
    lines = [line for line in err.splitlines() if not line.startswith(_OURS) and not _LOGGED.match(line)]
    starts = [index for index, line in enumerate(lines) if line == "Traceback (most recent call last):"]
    lines = lines[starts[-1] :] if starts else []
    while lines and not _RAISED.match(lines[0]):
        lines.pop(0)
    summary = [index for index, line in enumerate(lines) if line.startswith("Error Message Summary")]
    text = "\n".join([*lines[:1], *lines[summary[0] :]] if summary else lines).strip()
    return text if numbers else _NUMBER.sub("N", _SIZE.sub("SIZE", text))


def arrays(path: Path) -> dict[str, Any]:
    """All arrays that a job saved, by name."""
    import numpy

    with numpy.load(path) as file:
        return {name: file[name] for name in sorted(file.files)}


def apart(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Largest difference between two jobs' arrays: of the weights, the losses, the evaluation, each by its own scale."""
    if list(a) != list(b):
        return float("inf")
    groups: dict[str, list[str]] = {}
    for name in a:
        groups.setdefault(name.partition("_")[0], []).append(name)
    return max(distance([a[name] for name in names], [b[name] for name in names]) for names in groups.values())


def classes(events: list[dict[str, Any]]) -> str:
    """The classes said that are not `exact`, with their reasons."""
    found = {
        event["exactness"] + (": " + ", ".join(event["because"]) if event.get("because") else "")
        for event in events
        if event["type"] == "applied" and event["exactness"] != "exact"
    }
    return "; ".join(sorted(found))


def judge(ended: Ended, out: Path, plain: dict[str, Any], death: Optional[str], bound: float = EXACT) -> Verdict:
    """Of a guarded run. plain: arrays of the undisturbed run; death: raised() of a run that died of it unguarded, None
    where any out-of-memory error of Paddle's is as it would have been."""
    if ended.hung:
        return Verdict(HUNG, why=f"did not end within {ended.seconds:.0f} s")
    said = classes(ended.events)
    if ended.code == 0:
        far = apart(plain, arrays(out))
        if far <= bound:
            return Verdict(EXACT_RUN, far, said)
        return Verdict(SAID if said else SILENT, far, said)
    text = raised(ended.err)
    original = text == death if death is not None else bool(_OOM.match(text))
    if ended.code != 1 or not original:
        return Verdict(ODD, said=said, why=f"status {ended.code}: {raised(ended.err, True)[:300]}")
    told = [line for line in ended.err.splitlines() if line.startswith("bsguard: ") and "could not be saved" in line]
    if not told or ended.run is None or not (ended.run / "report.txt").exists():
        return Verdict(NO_REPORT, said=said, why="it died without a word or a report")
    return Verdict(DIED, said=said, why=told[-1][len("bsguard: ") :])


def judge_observed(plain: Ended, observed: Ended, out: str) -> Verdict:
    """Of a run with BSGUARD=observe, against the same without the preload. out: name of the file with the arrays."""
    if observed.hung:
        return Verdict(HUNG, why=f"did not end within {observed.seconds:.0f} s")
    if (plain.code, plain.out, raised(plain.err, True)) != (
        observed.code,
        observed.out,
        raised(observed.err, True),
    ):
        return Verdict(
            ODD,
            why=f"status {plain.code} became {observed.code}, {raised(plain.err, True)[:200]!r} became "
            f"{raised(observed.err, True)[:200]!r}",
        )
    if plain.code:
        return Verdict(DIED)
    far = apart(arrays(plain.folder / out), arrays(observed.folder / out))
    return Verdict(EXACT_RUN if far == 0.0 else SILENT, far)
