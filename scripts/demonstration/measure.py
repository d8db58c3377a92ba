"""Reads what the runs left and compares it: distances between results, and what events.jsonl tells.

Distances are L2 norms of the difference over L2 norms of the reference, all parameters together, in float64.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

# Distances below these are rounding and no more, whatever the hand-written run happened to hit. A float32 number has a
# relative precision of 6e-8. A gradient sums some thousand products; Adam then divides each by its own size, which
# lifts the rounding of gradients near zero to that of a step, and every further step starts from there.
GRADIENT_FLOOR = 1e-6
WEIGHT_FLOOR = 1e-5
GRADIENT_LIMIT = 1e-4


class Distance(NamedTuple):
    """relative: L2 of the difference over L2 of the reference. largest: largest difference of one number."""

    relative: float
    largest: float


def distance(reference: Path, other: Path) -> Distance:
    """Between two files of arrays with the same names and shapes."""
    with np.load(reference) as left, np.load(other) as right:
        if sorted(left.files) != sorted(right.files):
            raise ValueError(f"{reference} and {other} hold different parameters")
        a = np.concatenate([left[name].ravel().astype("float64") for name in sorted(left.files)])
        b = np.concatenate([right[name].ravel().astype("float64") for name in sorted(left.files)])
    return Distance(float(np.linalg.norm(a - b) / np.linalg.norm(a)), float(np.abs(a - b).max()))


def losses(folder: Path) -> list[float]:
    """The loss of each step of a run; empty where it did not finish."""
    path = folder / "losses.txt"
    return [float(value) for value in np.loadtxt(path, ndmin=1)] if path.exists() else []


def read_events(folder: Optional[Path]) -> list[dict[str, Any]]:
    """The events of a run folder of bsguard; empty where there are none."""
    path = folder / "events.jsonl" if folder else None
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def ooms(events: list[dict[str, Any]]) -> tuple[int, int, str]:
    """(terminal, absorbed, "2 in forward, 1 in evaluation") of a run."""
    terminal = [event for event in events if event["type"] == "oom"]
    absorbed = sum(event["type"] == "absorbed" for event in events)
    phases = Counter(event.get("phase", "other") for event in terminal)
    return len(terminal), absorbed, ", ".join(f"{number} in {phase}" for phase, number in phases.items())


def sizes_over_time(events: list[dict[str, Any]]) -> list[str]:
    """For each batch size, largest first, the micro-batches over the steps: "batch 256: steps 1-30 in 4 x 64"."""
    lines = []
    steps = [event for event in events if event["type"] == "step" and event.get("batch")]
    for batch in sorted({event["batch"] for event in steps}, reverse=True):
        spans: list[list[int]] = []  # first step, last step, accumulation steps, micro-batch
        for event in (event for event in steps if event["batch"] == batch):
            chunks = event["accumulation_steps"], event["micro_batch"]
            if spans and (spans[-1][2], spans[-1][3]) == chunks:
                spans[-1][1] = event["step"]
            else:
                spans.append([event["step"], event["step"], *chunks])
        told = ", ".join(
            f"{f'step {first}' if first == last else f'steps {first} to {last}'} in {number} x {size}"
            for first, last, number, size in spans
        )
        lines.append(f"batch {batch}: {told}")
    return lines
